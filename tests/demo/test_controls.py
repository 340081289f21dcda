"""Negative controls: a game day whose hands are tied must not pass, and must say why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.gameday import GameDay, small_plan

pytestmark = pytest.mark.timeout(400)


def _doctor(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailwatch", "gameday", "doctor", str(path), "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("control", "verdict", "status"),
    [
        ("no-injection", "INCONCLUSIVE", 3),
        ("rule-removed", "DEVIATED", 1),
        ("undo-blocked", "UNDO_FAILED", 5),
    ],
)
def test_a_control_gives_its_verdict(
    control: str, verdict: str, status: int, tmp_path: Path
) -> None:
    """The judge finds out from the evidence, which does not name the control."""
    day = GameDay(small_plan(tmp_path / "plan.json"), tmp_path / "day", "--control", control)
    assert day.wait(300) == status, day.output()
    report = day.report()
    assert [e["verdict"] for e in report["experiments"]] == [verdict]
    evidence = day.out / "evidence"
    for path in (evidence / "plan.json", evidence / "timeline.jsonl", evidence / "ledger.jsonl"):
        assert control not in path.read_text()

    found = json.loads(_doctor(day.out).stdout)["runs"][0]
    if control == "undo-blocked":
        assert len(found["undone"]) == 1
        assert "fault order cleared" in found["undone"][0]
        assert json.loads(_doctor(day.out).stdout)["runs"][0]["undone"] == []
    else:
        assert found["undone"] == found["failed"] == []
