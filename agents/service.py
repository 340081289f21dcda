"""What both agents do around their loop: end on SIGTERM, say where they listen, report bad usage.

Contract: a `Switch` is turned within the signal handler, so a loop that waits on it ends at once.
The ready file appears whole, after the agent serves; its content is the address, `host:port`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tailwatch.errors import UsageError
from tailwatch.files import write_durably


class Switch:
    """A flag that a signal handler may turn; one a process, made by its main thread.

    Not a `threading.Event`: its lock is not reentrant, so a handler that sets it while the very
    thread it interrupts waits on it never returns. And a handler runs only when Python does: what
    wakes a wait that began just after the signal is the byte that Python's own C handler leaves.
    """

    def __init__(self) -> None:
        self._on = False
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def set(self) -> None:
        """Turn it on."""
        self._on = True

    def is_set(self) -> bool:
        """Return whether it is on."""
        return self._on

    def wait(self, seconds: float) -> bool:
        """Wait until it is on, any signal comes or the seconds are over; return whether it is."""
        if not self._on and select.select([self._woken], [], [], seconds)[0]:
            os.read(self._woken, 4096)
        return self._on

    def close(self) -> None:
        """Give its two descriptors back."""
        signal.set_wakeup_fd(-1)
        os.close(self._woken)
        os.close(self._wake)


def stop_on_signals() -> Switch:
    """Return a switch that SIGTERM and SIGINT turn on."""
    stop = Switch()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def pause_on_signals() -> Callable[[], bool]:
    """Return what says whether SIGUSR1 came last (pause) or SIGUSR2 (go on)."""
    pausing = False

    def turn(number: int, _: object) -> None:
        nonlocal pausing
        pausing = number == signal.SIGUSR1

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, turn)
    return lambda: pausing


def say_ready(path: Path | None, address: str) -> None:
    """Write the address into the ready file."""
    if path is None:
        return
    try:
        write_durably(path, f"{address}\n".encode())
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", source=path) from error


def make_directory(path: Path, flag: str) -> Path:
    """Make a directory and return it; raise UsageError when that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; expected a directory", source=flag) from error
    return path


def log(text: str) -> None:
    """Write one line for people to standard error."""
    print(text, file=sys.stderr, flush=True)


def run_main(program: str, main: Callable[[], int]) -> int:
    """Return the exit code of `main`: 2, with one line, for bad usage."""
    try:
        return main()
    except UsageError as error:
        log(f"{program}: {error}")
        return 2
