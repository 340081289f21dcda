"""Which process a pid means, and a process that dies with its parent.

A pid alone is no identity: the kernel gives it out again. The pair (pid, start ticks) is one, and
so is a pidfd. Cost: one small read of /proc a question.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (state) on; None when there is no PID."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("ascii", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses and may hold both spaces and parentheses.
    return text[text.rindex(")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot (/proc/PID/stat field 22), or None."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields is not None else None


def same_process(pid: int, ticks: int) -> bool:
    """Whether `pid` is still the process that started at `ticks`; one that has ended is not.

    A zombie has ended: it only waits for its parent to read its status.
    """
    fields = _stat_fields(pid)
    return fields is not None and int(fields[19]) == ticks and fields[0] not in ("Z", "X")


def open_pidfd(pid: int) -> int | None:
    """Return a pidfd of `pid`, or None where the kernel has none or the process is gone."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def wait_gone(pid: int, ticks: int, timeout: float) -> bool:
    """Wait up to `timeout` seconds for a process to end, own child or not; True when it has.

    The process is not reaped.
    """
    deadline = time.monotonic() + timeout
    pidfd = open_pidfd(pid)
    try:
        while same_process(pid, ticks):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if pidfd is None:
                time.sleep(min(left, 0.02))
            else:
                # Not select: it refuses descriptors from 1,024 on.
                poller = select.poll()
                poller.register(pidfd, select.POLLIN)
                poller.poll(left * 1000)
        return True
    finally:
        if pidfd is not None:
            os.close(pidfd)


def death_signal_setter(parent_pid: int) -> Callable[[], None]:
    """Return a function for a freshly forked child; nothing in it needs an import or a lookup."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    prctl.restype = ctypes.c_int
    getppid, getpid, kill, sigkill = os.getppid, os.getpid, os.kill, int(signal.SIGKILL)

    def set_death_signal() -> None:
        if prctl(PR_SET_PDEATHSIG, sigkill, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        # The parent may have died before the call: then nobody would ever send the signal.
        if getppid() != parent_pid:
            kill(getpid(), sigkill)

    return set_death_signal


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel SIGKILL this process when its parent ends; for forked Python children.

    `parent_pid` is the parent's pid, read before the fork. When the parent is gone already this
    process is killed at once. The signal comes when the *thread* that forked ends, so fork from a
    thread that lives as long as its process. Children of this process do not inherit it.
    """
    death_signal_setter(parent_pid)()
