"""A launcher's hold on its fork server."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from pathlib import Path

from tailwatch.processes import TOKEN_VARIABLE, Process, StartError, spawn, wait_until
from tailwatch.trainer.launch.forkserver import shim

LISTENING = "listening"
LISTENING_SECONDS = 10.0


class ForkServer:
    """The fork server of this process; one for all ranks of the node.

    Args:
        module: has `preload()`, for the server, and `main(argv) -> int`, which is a rank.
        log: file for what the server says.
    """

    def __init__(self, module: str, log: Path) -> None:
        self._module = module
        self._log = log
        self._name = f"tailwatch-fork-{secrets.token_hex(16)}"
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the server, or None when it does not run."""
        process = self._process
        return process.pid if process is not None and process.alive() else None

    def ensure(self) -> None:
        """Start the server unless it runs; only from the main thread.

        Returns when it listens, long before it has imported: shims wait for that. One that does
        not come up costs `LISTENING_SECONDS` at most, and the ranks start without it.
        """
        if self.pid is not None:
            return
        command = [sys.executable, "-m", f"{__package__}.server", self._name, self._module]
        token = os.environ.get(TOKEN_VARIABLE, "")
        process = spawn(command, log=self._log, token=token, name="fork server")
        self._process = process
        with contextlib.suppress(StartError):
            wait_until(
                lambda: LISTENING in process.output(), LISTENING_SECONDS, "it listens",
                processes=[process], interval=0.005,
            )  # fmt: skip

    def command(self, arguments: list[str]) -> list[str]:
        """Return the command of a shim, whose parent is to be this process."""
        start = [sys.executable, "-I", "-S", shim.__file__, self._name, str(os.getpid())]
        return [*start, self._module, *arguments]

    def first_end_ns(self, since_ns: int) -> int | None:
        """Return when the first rank ended after `since_ns` (wall clock), as far as is known."""
        lines = self._process.output().splitlines() if self._process is not None else []
        ends = [int(line.split()[1]) for line in lines if line.startswith("ended ")]
        return min((end for end in ends if end > since_ns), default=None)
