"""The guard after every way in which a driver ends."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
from pathlib import Path

import pytest

from support.procs import SLEEPER, eventually, read_line, running, script
from tailwatch.processes import find_by_token, make_scratch, start_ticks
from tailwatch.processes.guard import main as guard_main
from tailwatch.processes.guard import open_entries

# A driver: one guard, one child in a session of its own that the death signal does not reach.
DRIVER = """
import os, subprocess, sys, time
from pathlib import Path
from tailwatch.processes import Guard, TOKEN_VARIABLE, make_scratch
run, token, scratch, then = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:]
ledger = run / "ledger.jsonl"
ledger.write_text('{"id": "e1", "state": "open"}\\n')
make_scratch(scratch, token)
(scratch / "ring").write_bytes(bytes(4096))
guard = Guard.start(run=run, token=token, ledger=ledger, scratch=[scratch], then=then)
escaped = subprocess.Popen(
    [sys.executable, "-S", "-c", "import time; time.sleep(600)"],
    start_new_session=True, env={**os.environ, TOKEN_VARIABLE: token},
)
forked = os.fork()
if forked == 0:  # it holds the guard's pipe open, which must not matter
    time.sleep(600)
print(guard.pid, escaped.pid, forked, flush=True)
command = sys.stdin.readline().strip()
if command == "release":
    escaped.kill()
    escaped.wait()
    print(guard.release(), flush=True)
elif command == "forget":
    print(guard.release(), flush=True)
"""


class Driver:
    """A running driver with the things that have to be gone after it."""

    def __init__(self, tmp_path: Path, name: str, *, then: list[str] | None = None) -> None:
        self.run = tmp_path / name
        self.run.mkdir()
        self.token = secrets.token_hex(8)
        self.scratch = tmp_path / f"scratch-{name}"
        self.undone = self.run / "undone"
        default = ["sh", "-c", f"echo undoing >&2; touch {self.undone}"]
        self.process = script(
            DRIVER, self.run, self.token, self.scratch, *(default if then is None else then)
        )
        words = read_line(self.process).split()
        self.guard, self.escaped, self.forked = (int(word) for word in words)

    def tell(self, command: str) -> str:
        """Give an order and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return read_line(self.process)

    def log(self) -> str:
        """Return the guard's log."""
        return (self.run / "logs" / "guard.log").read_text()

    def end(self) -> None:
        """Kill the driver and its fork, which alone carries no token."""
        self.process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.forked, signal.SIGKILL)
        self.process.communicate()


@pytest.mark.parametrize("blow", ["kill -9 of the driver", "kill -9 of its whole group"])
def test_killed_driver(tmp_path: Path, blow: str) -> None:
    """After kill -9 the guard undoes, kills even what is stopped, and removes the scratch."""
    driver = Driver(tmp_path, "a")
    os.kill(driver.escaped, signal.SIGSTOP)
    os.kill(driver.guard, signal.SIGINT)
    os.kill(driver.guard, signal.SIGTERM)
    assert running(driver.guard)
    if "group" in blow:
        os.killpg(driver.process.pid, signal.SIGKILL)
    else:
        os.kill(driver.process.pid, signal.SIGKILL)
    driver.process.wait()
    assert eventually(lambda: not running(driver.guard), 30)
    assert driver.undone.exists()
    assert not running(driver.escaped)
    assert find_by_token(driver.token) == []
    assert not driver.scratch.exists()
    assert "open in the ledger: ['e1']" in driver.log()
    assert "undo: undoing" in driver.log()
    driver.end()


def test_clean_release(tmp_path: Path) -> None:
    """A driver that cleaned up and says so gets a guard that undoes nothing and finds nothing."""
    driver = Driver(tmp_path, "a")
    (driver.scratch / "ring").unlink()
    (driver.scratch / ".tailwatch-scratch").unlink()
    driver.scratch.rmdir()
    assert driver.tell("release") == "0"
    assert not driver.undone.exists()
    assert not running(driver.guard)
    driver.end()


def test_release_with_something_left(tmp_path: Path) -> None:
    """What a driver left behind without noticing is removed, and the driver is told."""
    driver = Driver(tmp_path, "a")
    assert driver.tell("forget") == "1"
    assert not driver.undone.exists()
    assert find_by_token(driver.token) == []
    assert not driver.scratch.exists()
    assert f"killed [{driver.escaped}]" in driver.log()
    driver.end()


def test_undo_that_fails(tmp_path: Path) -> None:
    """An undo command that is missing or fails does not stop the rest, and the log says so."""
    driver = Driver(tmp_path, "a", then=[str(tmp_path / "no-such-command")])
    driver.process.kill()
    driver.process.wait()
    assert eventually(lambda: not running(driver.guard), 30)
    assert find_by_token(driver.token) == []
    assert not driver.scratch.exists()
    assert "cannot start" in driver.log()
    assert "status 5" in driver.log()
    driver.end()


def test_two_drivers_side_by_side(tmp_path: Path) -> None:
    """The end of one driver leaves the processes and files of the other alone."""
    first, second = Driver(tmp_path, "a"), Driver(tmp_path, "b")
    first.process.kill()
    first.process.wait()
    assert eventually(lambda: not running(first.guard), 30)
    assert not running(first.escaped)
    assert running(second.escaped)
    assert running(second.guard)
    assert second.scratch.exists()
    assert second.tell("forget") == "1"
    assert not second.undone.exists()
    for driver in (first, second):
        driver.end()


ALONE = """
import sys
from tailwatch.processes import guard
if sys.argv[1] == "no-pidfd":
    guard.open_pidfd = lambda pid: None
sys.exit(guard.main(sys.argv[2:]))
"""


def alone(tmp_path: Path, kind: str, driver: int, ticks: int | None) -> subprocess.Popen[str]:
    """Start a guard of a driver of any kind, with one scratch directory."""
    token = secrets.token_hex(8)
    (tmp_path / "logs").mkdir()
    arguments = ["--driver", str(driver), "--driver-ticks", str(ticks), "--run", str(tmp_path)]
    arguments += ["--token", token, "--ledger", str(tmp_path / "none")]
    scratch = make_scratch(tmp_path / "scratch", token)
    return script(ALONE, kind, *arguments, "--scratch", scratch)


def test_driver_that_ended_too_early(tmp_path: Path) -> None:
    """A guard whose driver died while it started cleans up at once, also if the pid is reused."""
    with alone(tmp_path, "pidfd", os.getpid(), 1) as guard:
        assert guard.wait(30) == 1
    assert not (tmp_path / "scratch").exists()


def test_kernel_without_pidfd(tmp_path: Path) -> None:
    """Where the kernel has no pidfd the guard looks from time to time."""
    driver = subprocess.Popen(SLEEPER)
    with driver, alone(tmp_path, "no-pidfd", driver.pid, start_ticks(driver.pid)) as guard:
        assert read_line(guard) == "watching"
        assert (tmp_path / "scratch").exists()
        driver.kill()
        assert guard.wait(30) == 1
    assert not (tmp_path / "scratch").exists()


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments end the guard with status 2 before it watches."""
    with pytest.raises(SystemExit) as caught:
        guard_main(["--driver", "x"])
    assert caught.value.code == 2
    assert "--driver" in capsys.readouterr().err


def test_open_entries(tmp_path: Path) -> None:
    """The last state of an entry counts, and a line that was cut short counts as open."""
    ledger = tmp_path / "ledger.jsonl"
    lines = [
        json.dumps({"id": "a", "state": "open"}),
        json.dumps({"id": "b", "state": "open"}),
        json.dumps({"id": "a", "state": "undone"}),
        json.dumps({"id": "c", "state": "failed"}),
    ]
    ledger.write_text("\n".join(lines) + '\n{"id": "d", "sta')
    assert open_entries(ledger) == ["b", "c", "line 5"]
    assert open_entries(tmp_path / "none") == []
