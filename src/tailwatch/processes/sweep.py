"""Find and kill every process of a run, wherever it went.

A process carries the run's token in the environment it was started with, and so does everything
it forks, whatever session or group it moves to and whether or not its parent lives. Cost: one
read of /proc/PID/environ for each process of the machine, some milliseconds.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

from tailwatch.processes.child import TOKEN_VARIABLE
from tailwatch.processes.identity import open_pidfd

PAUSE_SECONDS = 0.05


def _carries(pid: int, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return wanted in file.read().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return False


def find_by_token(token: str) -> list[int]:
    """Return the pids of the living processes of the run with this token, this one included."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    return [int(n) for n in os.listdir("/proc") if n.isdigit() and _carries(int(n), wanted)]


def _kill(pid: int, wanted: bytes) -> None:
    """SIGKILL `pid` if it is still the run's: the pidfd pins it, then its token is read again."""
    pidfd = open_pidfd(pid)
    try:
        if not _carries(pid, wanted):
            return
        if pidfd is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        if pidfd is not None:
            os.close(pidfd)


def kill_for_sure(
    token: str, *, deadline_seconds: float = 5.0, spare: Collection[int] = ()
) -> list[int]:
    """SIGKILL every process of the run until none is left; return the pids that survived.

    The calling process and the pids in `spare` are left alone. SIGKILL also ends a stopped process;
    it is not continued first, because it would run for a moment. None left means two scans
    in a row that found nothing: a process in the middle of an exec shows no environment.
    """
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    spared = {os.getpid(), *spare}
    deadline = time.monotonic() + deadline_seconds
    empty_scans = 0
    while True:
        left = [pid for pid in find_by_token(token) if pid not in spared]
        for pid in left:
            _kill(pid, wanted)
        empty_scans = 0 if left else empty_scans + 1
        if empty_scans == 2 or time.monotonic() > deadline:
            return left
        time.sleep(PAUSE_SECONDS)
