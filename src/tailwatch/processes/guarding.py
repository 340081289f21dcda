"""The driver's hold on its guard process. Cost: one Python process of about 12 MB that sleeps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tailwatch.processes.child import TOKEN_VARIABLE
from tailwatch.processes.identity import start_ticks
from tailwatch.processes.starting import StartError

RELEASE_SECONDS = 15.0

# What the guard's exit status says.
NOTHING_LEFT, CLEANED, NOT_CLEANED = 0, 1, 5


class Guard:
    """A running `tailwatch.processes.guard` that watches this process."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid = popen.pid
        self._popen = popen

    @classmethod
    def start(
        cls,
        *,
        run: Path,
        token: str,
        ledger: Path,
        scratch: Sequence[Path] = (),
        then: Sequence[str | Path] = (),
    ) -> Guard:
        """Start the guard and return when it watches.

        `scratch` are directories made by `make_scratch`; `then` is the command that undoes what is
        open in `ledger`, run only when this process ends without `release`. The guard does not
        carry the token and therefore survives `kill_for_sure`.

        Raises:
            StartError: the guard ended before it watched.
        """
        ticks = start_ticks(os.getpid())
        argv = [sys.executable, "-m", "tailwatch.processes.guard"]
        argv += ["--driver", str(os.getpid()), "--driver-ticks", str(ticks)]
        argv += ["--run", str(run), "--token", token, "--ledger", str(ledger)]
        for path in scratch:
            argv += ["--scratch", str(path)]
        argv += ["--then", *(str(part) for part in then)]
        environment = {k: v for k, v in os.environ.items() if k != TOKEN_VARIABLE}
        log = run / "logs" / "guard.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            popen = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        assert popen.stdout is not None
        with popen.stdout:
            if not popen.stdout.readline():
                status = popen.wait()
                raise StartError(f"guard ended (exit status {status}) before it watched; {log}")
        return cls(popen)

    def alive(self) -> bool:
        """Whether the guard still watches."""
        return self._popen.poll() is None

    def release(self) -> int:
        """Tell the guard that all is undone, wait until it has looked, and return its exit status.

        0: no process with the token and no scratch was left. 1: something was, and is gone now.
        5: something could not be killed or removed, or not within 15 s. Negative: the guard itself
        had been killed. What and which stands in `logs/guard.log`.
        """
        assert self._popen.stdin is not None
        try:
            with self._popen.stdin as control:
                control.write(b"done")
        except BrokenPipeError:
            pass
        try:
            return self._popen.wait(timeout=RELEASE_SECONDS)
        except subprocess.TimeoutExpired:
            return NOT_CLEANED
