"""One process at a time, refused by the name of the first."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailwatch.holding import Held, Hold, hold

HOLDER = """
import sys, time
from pathlib import Path
from tailwatch.holding import Hold
taken = Hold.take(Path(sys.argv[1]), "run", "night")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the file."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "held"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_is_told_run_host_and_pid(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    """Who comes second learns who is there."""
    expected = f"this run is in use by run night, pid {other.pid} on {socket.gethostname()}"
    with pytest.raises(Held, match=expected):
        Hold.take(tmp_path / "held", "run", "day")


def test_a_holder_that_was_killed_holds_no_longer(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    """Who waits for a predecessor gets it when that is gone, and is then the one that is named."""
    other.send_signal(signal.SIGSTOP)
    with pytest.raises(Held):
        Hold.take(tmp_path / "held", "run", "day", patience=0.1)
    other.kill()
    taken = Hold.take(tmp_path / "held", "run", "day", patience=20)
    assert f"run day, pid {os.getpid()}" in (tmp_path / "held").read_text()
    taken.release()


def test_a_process_holds_once_however_often_it_asks(tmp_path: Path) -> None:
    """The same process gets the same hold; after its release it is free."""
    first = Hold.take(tmp_path / "held", "run", "day")
    assert Hold.take(tmp_path / "held", "run", "day") is first
    first.release()
    first.release()
    again = Hold.take(tmp_path / "held", "run", "day")
    assert again is not first
    again.release()


def test_a_directory_is_held_while_it_is_used(tmp_path: Path) -> None:
    """`hold` lets go at the end, also after an error."""

    def fail() -> None:
        with hold(tmp_path, "run directory"):
            raise RuntimeError

    for _ in range(2):
        with pytest.raises(RuntimeError):
            fail()
