"""A child process that dies with the process that started it.

Contract: a part is its whole process group. Once the leader has ended, what is left of its group
is killed *before* the leader is reaped: until then the kernel cannot give the group's number to
anybody else, so the signal never hits a stranger. A leader that is never polled stays a zombie
until the driver ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailwatch.processes.identity import death_signal_setter, start_ticks, wait_gone

TOKEN_VARIABLE = "TAILWATCH_RUN_TOKEN"

# How long a process may take to end after SIGKILL (it may sit in an uninterruptible read).
KILLED_SECONDS = 10.0
THREADS_SECONDS = 0.01
TAIL_BYTES = 65_536


class Process:
    """A child started by `spawn`: leader of a session and process group of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], name: str, log: Path, log_from: int) -> None:
        self.name = name
        self.log = log
        self.pid = popen.pid
        ticks = start_ticks(popen.pid)
        assert ticks is not None, "a child that nobody has reaped has an entry in /proc"
        self.start_ticks = ticks
        self._popen = popen
        self._log_from = log_from
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit status (negative: the signal) when the process has ended, else None."""
        with self._lock:
            if self._popen.returncode is None:
                options = os.WEXITED | os.WNOHANG | os.WNOWAIT
                if os.waitid(os.P_PID, self.pid, options) is not None:
                    self._kill_group()
                    self._popen.wait()
            return self._popen.returncode

    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.poll() is None

    def wait(self, timeout: float) -> int | None:
        """Wait up to `timeout` seconds; return the exit status, or None when it still runs."""
        deadline = time.monotonic() + timeout
        if self._popen.returncode is None:
            wait_gone(self.pid, self.start_ticks, timeout)
        # A leader that is a zombie already cannot be reaped until its last thread has ended.
        while (status := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(THREADS_SECONDS)
        return status

    def terminate(self, grace_seconds: float) -> int:
        """End the process: SIGTERM, after `grace_seconds` SIGKILL to the group; return its status.

        A stopped process is continued, so that it can act on SIGTERM. Does nothing when it has
        ended already.

        Raises:
            TimeoutError: not even SIGKILL ended it within 10 s (an uninterruptible system call).
        """
        status = self.poll()
        if status is not None:
            return status
        self._popen.send_signal(signal.SIGTERM)
        self._popen.send_signal(signal.SIGCONT)
        status = self.wait(grace_seconds)
        if status is not None:
            return status
        self._kill_group()
        status = self.wait(KILLED_SECONDS)
        if status is None:
            raise TimeoutError(f"{self.name} (pid {self.pid}) does not end after SIGKILL")
        return status

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def output(self) -> str:
        """Return what the process wrote to its log since it started; the last 64 KiB of it."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_from, size - TAIL_BYTES))
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def last_line(self) -> str:
        """Return the last line of the log that is not empty, or an empty string."""
        lines = [line for line in self.output().splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    def __repr__(self) -> str:
        return f"Process(name={self.name!r}, pid={self.pid}, status={self._popen.returncode})"


def spawn(
    argv: Sequence[str | Path],
    *,
    log: Path,
    token: str,
    name: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Process:
    """Start `argv` in its own session, output appended to `log`, and have it die with us.

    The child gets `env` (by default this process' own) with `TAILWATCH_RUN_TOKEN=token`, by which
    `kill_for_sure` finds it and everything it starts. The kernel SIGKILLs the child, but not its
    children, when the *thread* that started it ends; therefore only the main thread may call this.

    Raises:
        RuntimeError: called off the main thread.
        OSError: the program is missing or not executable, or the log cannot be written.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("spawn off the main thread: the child would die with that thread")
    environment = dict(os.environ if env is None else env)
    environment[TOKEN_VARIABLE] = token
    with log.open("ab") as output:
        log_from = output.seek(0, os.SEEK_END)
        # preexec_fn is unsafe only for children that need a lock another thread may hold; this one
        # makes two system calls through a function looked up before the fork.
        popen = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=death_signal_setter(os.getpid()),
        )
    return Process(popen, name, log, log_from)
