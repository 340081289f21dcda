"""What becomes of a game day that is killed, interrupted or loses a part."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.gameday import GameDay, small_plan
from tailwatch import control
from tailwatch.chaos.ledger import Ledger
from tailwatch.processes import find_by_token

pytestmark = pytest.mark.timeout(300)


def _gone(day: GameDay, within: float) -> None:
    driver = day.driver()
    deadline = time.monotonic() + within
    while find_by_token(driver["token"]) or any(Path(p).exists() for p in driver["scratch"]):
        assert time.monotonic() < deadline, find_by_token(driver["token"])
        time.sleep(0.1)


@pytest.mark.parametrize(
    "moment",
    ["starting 2 nodes", "rank-slow: the fault is in force"],
)
def test_kill_9_leaves_nothing_behind(moment: str, tmp_path: Path) -> None:
    """After kill -9 of the driver no process, scratch or fault is left within 30 s."""
    day = GameDay(small_plan(tmp_path / "plan.json"), tmp_path / "day", "--only", "rank-slow")
    day.wait_for(moment, 200)
    assert find_by_token(day.driver()["token"])
    os.kill(day.process.pid, signal.SIGKILL)
    day.process.wait()
    _gone(day, 30)
    deadline = time.monotonic() + 30
    ledger = Ledger(day.out / "evidence" / "ledger.jsonl")
    while ledger.left_open() or control.standing_faults(day.out / "orders", time.time_ns()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_ctrl_c_undoes_everything_and_aborts_within_ten_seconds(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a fault: undone, nothing left, verdict ABORTED, exit status 4."""
    day = GameDay(small_plan(tmp_path / "plan.json"), tmp_path / "day", "--only", "rank-slow")
    day.wait_for("rank-slow: the fault is in force", 200)
    began = time.monotonic()
    for _ in range(3):  # an impatient hand must not stop the undo
        os.kill(day.process.pid, signal.SIGINT)
        time.sleep(0.02)
    assert day.wait(60) == 4, day.output()
    # Ten seconds on an idle machine; the bound only guards against a hang.
    assert time.monotonic() - began < 60
    _gone(day, 5)
    assert day.report()["verdict"] == "ABORTED"
    assert Ledger(day.out / "evidence" / "ledger.jsonl").left_open() == []
    assert "Traceback" not in day.output()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_ended_session_aborts_at_the_start_too(number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM and a closed terminal are an abort with a verdict, also before anything trains."""
    day = GameDay(small_plan(tmp_path / "plan.json"), tmp_path / "day")
    day.wait_for("starting the node agents", 60)
    os.kill(day.process.pid, number)
    assert day.wait(60) == 4, day.output()
    assert day.report()["verdict"] == "ABORTED"
    _gone(day, 5)


def test_a_full_disk_is_an_abort_and_not_a_traceback(tmp_path: Path) -> None:
    """On a small full disk the game day ends in words, with nothing left."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=True)
    try:
        plan, log = small_plan(tmp_path / "plan.json"), tmp_path / "day.log"
        day = GameDay(plan, disk / "day", stdout=log)
        day.wait_for("waiting for a baseline", 100)
        with contextlib.suppress(OSError), (disk / "filler").open("wb") as filler:
            while True:
                filler.write(bytes(1 << 16))
                filler.flush()
        assert day.wait(200) in (3, 4), day.output()
        assert "Traceback" not in day.output()
        assert "No space left" in day.output()
        _gone(day, 5)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_reader_that_goes_away_does_not_stop_a_game_day(tmp_path: Path) -> None:
    """With stdout closed half way the run still ends with a verdict of its own."""
    day = GameDay(
        small_plan(tmp_path / "plan.json", baseline_seconds=5), tmp_path / "day",
        stdout=Path("/dev/full"),
    )  # fmt: skip
    assert day.wait(120) == 3
    assert day.report()["verdict"] == "BASELINE_NOT_MET"


def test_a_prometheus_that_dies_gives_no_pass(tmp_path: Path) -> None:
    """Without its Prometheus a game day ends INCONCLUSIVE, says so, and leaves nothing."""
    day = GameDay(small_plan(tmp_path / "plan.json"), tmp_path / "day", "--only", "rank-slow")
    day.wait_for("waiting for a baseline", 100)
    for pid in find_by_token(day.driver()["token"]):
        if b"prometheus.yml" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    assert day.wait(60) == 3, day.output()
    assert "prometheus" in json.dumps(day.report())
    assert "Traceback" not in day.output()
    _gone(day, 5)
