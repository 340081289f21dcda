"""Small processes that tests start, watch and kill."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tailwatch.processes import same_process, start_ticks

SLEEPER = [sys.executable, "-S", "-E", "-c", "import time; time.sleep(600)"]


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Wait until `condition` is true, with a generous bound; return whether it became so."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def running(pid: int) -> bool:
    """Whether `pid` is there and no zombie."""
    ticks = start_ticks(pid)
    return ticks is not None and same_process(pid, ticks)


def state(pid: int) -> str:
    """Return the state letter of /proc/PID/stat."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def script(source: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start Python source as a driver of its own; its standard output is a pipe of text lines."""
    return subprocess.Popen(
        [sys.executable, "-c", source, *(str(a) for a in arguments)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of its standard output; fail when it ended without one."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the driver ended with {process.wait()} without a word"
    return line.strip()
