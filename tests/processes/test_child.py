"""Children that die with their parent, and the ways to end one."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from pathlib import Path

import pytest

from support.procs import SLEEPER, eventually, read_line, running, script, state
from tailwatch.processes import (
    TOKEN_VARIABLE,
    die_with_parent,
    find_by_token,
    kill_for_sure,
    same_process,
    spawn,
    start_ticks,
)

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("up", flush=True)
while True: time.sleep(600)
"""

FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""

DRIVER = """
import os, sys, time
from pathlib import Path
from tailwatch.processes import spawn
argv = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
child = spawn(argv, log=Path(sys.argv[1]), token=sys.argv[2], name="child")
print(child.pid, flush=True)
time.sleep(600)
"""


def test_output_status_and_token(tmp_path: Path) -> None:
    """A child writes to its log, carries the run's token, and its status is reported."""
    source = f"import os; print(os.environ['{TOKEN_VARIABLE}']); raise SystemExit(7)"
    child = spawn(
        [sys.executable, "-S", "-c", source], log=tmp_path / "log", token="t-42", name="c"
    )
    assert child.wait(20) == 7
    assert not child.alive()
    assert child.last_line() == "t-42"


def test_output_is_only_of_this_start(tmp_path: Path) -> None:
    """What an earlier process left in the same log is not taken for this one's output."""
    log = tmp_path / "log"
    log.write_text("old story\n")
    child = spawn([sys.executable, "-S", "-c", ""], log=log, token="t", name="c")
    assert child.wait(20) == 0
    assert child.output() == ""
    assert child.last_line() == ""


def test_environment_is_what_was_given(tmp_path: Path) -> None:
    """With `env` the child has exactly that environment and the token."""
    source = "import os; print(sorted(k for k in os.environ if k != 'LC_CTYPE'))"
    child = spawn(
        [sys.executable, "-S", "-c", source],
        log=tmp_path / "log",
        token="t",
        name="c",
        env={"A": "1"},
    )
    child.wait(20)
    assert child.last_line() == str(["A", TOKEN_VARIABLE])


def test_missing_program(tmp_path: Path) -> None:
    """A program that is not there is an error at the call, not a child that ends."""
    with pytest.raises(FileNotFoundError):
        spawn([tmp_path / "nothing"], log=tmp_path / "log", token="t", name="c")


def test_refused_off_the_main_thread(tmp_path: Path) -> None:
    """Off the main thread `spawn` refuses, because the death signal would follow that thread."""
    caught: list[BaseException] = []

    def attempt() -> None:
        try:
            spawn(SLEEPER, log=tmp_path / "log", token="t", name="c")
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_terminate_is_gentle_first(tmp_path: Path) -> None:
    """A child that obeys SIGTERM ends by it, even when it was stopped."""
    child = spawn(SLEEPER, log=tmp_path / "log", token="t", name="c")
    os.kill(child.pid, signal.SIGSTOP)
    assert eventually(lambda: state(child.pid) == "T")
    assert child.terminate(20) == -signal.SIGTERM
    assert child.terminate(20) == -signal.SIGTERM


def test_terminate_kills_after_the_grace(tmp_path: Path) -> None:
    """A child that ignores SIGTERM is asked, then killed, and reaped."""
    child = spawn([sys.executable, "-S", "-c", STUBBORN], log=tmp_path / "l", token="t", name="c")
    assert eventually(lambda: child.last_line() == "up")
    assert child.terminate(0.5) == -signal.SIGKILL
    assert child.last_line() == "asked"
    assert start_ticks(child.pid) is None


@pytest.mark.parametrize("lifetime", ["0", "600"])
def test_the_group_goes_with_its_leader(tmp_path: Path, lifetime: str) -> None:
    """Whether the leader ends by itself or is ended, nothing of its group stays."""
    child = spawn(
        [sys.executable, "-S", "-c", FAMILY, lifetime], log=tmp_path / "l", token="t", name="c"
    )
    assert eventually(lambda: child.last_line().isdigit())
    grandchild = int(child.last_line())
    if lifetime == "0":
        assert eventually(lambda: not child.alive())
    else:
        child.terminate(0)
    assert eventually(lambda: not running(grandchild))


def test_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    """kill -9 of a driver takes its child along at once, also one that is stopped."""
    driver = script(DRIVER, tmp_path / "log", secrets.token_hex(8))
    with driver:
        child = int(read_line(driver))
        os.kill(child, signal.SIGSTOP)
        driver.kill()
    assert eventually(lambda: not running(child))


def test_die_with_parent_in_a_fork() -> None:
    """A forked child that calls `die_with_parent` goes with its parent."""
    source = (
        "import os, time\n"
        "from tailwatch.processes import die_with_parent\n"
        "parent = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    die_with_parent(parent)\n"
        "    print(os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    driver = script(source)
    with driver:
        child = int(read_line(driver))
        assert running(child)
        driver.kill()
    assert eventually(lambda: not running(child))


def test_die_with_parent_that_is_gone() -> None:
    """When the parent died before the call the child ends itself."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(1 << 30)  # no process has this number
            os.write(writer, b"alive")
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b""
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_identity(tmp_path: Path) -> None:
    """A pid with other ticks, a zombie and a pid that is gone are not the same process."""
    child = spawn(SLEEPER, log=tmp_path / "log", token="t", name="c")
    assert same_process(child.pid, child.start_ticks)
    assert not same_process(child.pid, child.start_ticks + 1)
    os.kill(child.pid, signal.SIGKILL)
    assert eventually(lambda: state(child.pid) == "Z")
    assert not same_process(child.pid, child.start_ticks)
    assert start_ticks(child.pid) == child.start_ticks
    assert child.poll() == -signal.SIGKILL
    assert start_ticks(child.pid) is None


def test_sweep_hits_the_run_and_nobody_else(tmp_path: Path) -> None:
    """All processes of a run are killed, those in other sessions and stopped ones, no others."""
    token, other = secrets.token_hex(8), secrets.token_hex(8)
    escape = (
        "import os, subprocess, sys, time\n"
        "argv = [sys.executable, '-S', '-c', 'import time; time.sleep(600)']\n"
        "print(subprocess.Popen(argv, start_new_session=True).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    family = spawn([sys.executable, "-c", escape], log=tmp_path / "a", token=token, name="a")
    spared = spawn(SLEEPER, log=tmp_path / "b", token=token, name="b")
    stranger = spawn(SLEEPER, log=tmp_path / "c", token=other, name="c")
    longer = spawn(SLEEPER, log=tmp_path / "d", token=token + "0", name="d")
    assert eventually(lambda: family.last_line().isdigit())
    escaped = int(family.last_line())
    assert eventually(lambda: set(find_by_token(token)) == {family.pid, spared.pid, escaped})
    os.kill(escaped, signal.SIGSTOP)
    assert kill_for_sure(token, spare={spared.pid}) == []
    assert find_by_token(token) == [spared.pid]
    assert not running(escaped)
    assert family.wait(20) == -signal.SIGKILL
    assert stranger.alive()
    assert longer.alive()
    for process in (spared, stranger, longer):
        process.terminate(5)
