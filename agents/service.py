"""What both agents do around their loop: end on SIGTERM, say where they listen, report bad usage.

Contract: `stop` is set within the signal handler, so a loop that waits on it ends at once. The
ready file appears whole, after the agent serves; its content is the address, `host:port`.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tailwatch.errors import UsageError
from tailwatch.files import write_durably


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def pause_on_signals() -> threading.Event:
    """Return an event that SIGUSR1 sets and SIGUSR2 clears."""
    pausing = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: pausing.set())
    signal.signal(signal.SIGUSR2, lambda *_: pausing.clear())
    return pausing


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
