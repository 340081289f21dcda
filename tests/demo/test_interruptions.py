"""What becomes of a game day that is killed, interrupted or loses a part."""

from __future__ import annotations

import json
import os
import signal
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
    ["starting 2 nodes", "rank-slow: fault is in force"],
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
    day.wait_for("rank-slow: fault is in force", 200)
    began = time.monotonic()
    os.kill(day.process.pid, signal.SIGINT)
    assert day.wait(60) == 4, day.output()
    # Ten seconds on an idle machine; the bound only guards against a hang.
    assert time.monotonic() - began < 60
    _gone(day, 5)
    assert day.report()["verdict"] == "ABORTED"
    assert Ledger(day.out / "evidence" / "ledger.jsonl").left_open() == []
    assert "Traceback" not in day.output()


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
