"""Long proofs: the demo's own workload, again and again, and kills at moments nobody chose."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.gameday import GameDay, small_plan
from tailwatch import control
from tailwatch.chaos.ledger import Ledger
from tailwatch.chaos.plan import DEMO_PLAN
from tailwatch.processes import find_by_token

pytestmark = pytest.mark.soak

DEMOS = 5
KILLS = 12


def test_five_demos_in_a_row_pass(tmp_path: Path) -> None:
    """Every one of five demos has four PASSED verdicts."""
    for number in range(DEMOS):
        day = GameDay(DEMO_PLAN, tmp_path / f"demo-{number}")
        began = time.monotonic()
        status = day.wait(900)
        report = day.report()
        facts = [
            (e["name"], e["verdict"], e["detection_seconds"], e["recovery_seconds"])
            for e in report["experiments"]
        ]
        print(f"demo {number}: {time.monotonic() - began:.0f} s {facts}", flush=True)
        assert status == 0, (report["reason"], day.output())


@pytest.mark.parametrize("node", ["node-0", "node-1"])
def test_either_node_can_be_drained(node: str, tmp_path: Path) -> None:
    """Also the node of rank 0 leaves and returns without a lost step."""
    plan = small_plan(tmp_path / "plan.json")
    data = json.loads(plan.read_text())
    data["experiments"][3]["target"] = {"node": node}
    plan.write_text(json.dumps(data))
    day = GameDay(plan, tmp_path / "day", "--only", "node-drain")
    assert day.wait(400) == 0, (day.report()["reason"], day.output())


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("fault", ["rank-slow", "rank-kill", "checkpoint-corrupt"])
def test_every_rank_can_be_the_target(fault: str, rank: int, tmp_path: Path) -> None:
    """No rank is special, also not rank 0, which holds the order book."""
    plan = small_plan(tmp_path / "plan.json")
    data = json.loads(plan.read_text())
    for experiment in data["experiments"][:3]:
        experiment["target"] = {"rank": rank}
    plan.write_text(json.dumps(data))
    day = GameDay(plan, tmp_path / "day", "--only", fault)
    assert day.wait(400) == 0, (day.report()["reason"], day.output())


def test_kill_9_at_random_moments_leaves_nothing(tmp_path: Path) -> None:
    """Whenever the driver is killed, within 30 s or after one doctor nothing is left."""
    generator = random.Random(7)
    plan = small_plan(tmp_path / "plan.json")
    for number in range(KILLS):
        day = GameDay(plan, tmp_path / f"day-{number}")
        after = generator.uniform(0.5, 75.0)
        deadline = time.monotonic() + after
        while time.monotonic() < deadline and day.process.poll() is None:
            time.sleep(0.05)
        os.kill(day.process.pid, signal.SIGKILL)
        day.process.wait()
        if not (day.out / "driver.json").exists():
            continue
        driver = day.driver()
        deadline = time.monotonic() + 30
        while find_by_token(driver["token"]) and time.monotonic() < deadline:
            time.sleep(0.2)
        doctor = [sys.executable, "-m", "tailwatch", "gameday", "doctor", str(day.out)]
        assert subprocess.run(doctor, check=False).returncode == 0
        print(f"killed after {after:.1f} s", flush=True)
        assert find_by_token(driver["token"]) == []
        assert not any(Path(path).exists() for path in driver["scratch"])
        assert Ledger(day.out / "evidence" / "ledger.jsonl").left_open() == []
        assert control.standing_faults(day.out / "orders", time.time_ns()) == []


def test_two_game_days_side_by_side_do_not_meet(tmp_path: Path) -> None:
    """Both end with a verdict of their own; timings may suffer, ports, files and ranks may not."""
    plan = small_plan(tmp_path / "plan.json")
    days = [GameDay(plan, tmp_path / name, "--only", "rank-kill") for name in ("one", "two")]
    for day in days:
        assert day.wait(600) in (0, 1, 3), day.output()
        [experiment] = day.report()["experiments"]
        restarts = list((day.out / "attempts").glob("*.json"))
        assert len(restarts) == 2
        assert all(alert["labels"]["run"] == day.out.name for alert in experiment["alerts"])
        assert "Traceback" not in day.output()
