"""Game days on the real parts: torchrun ranks, agents, Prometheus, Alertmanager, receiver.

The workload is small, everything else is what `tailwatch demo` runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.gameday import GameDay, small_plan
from tailwatch.chaos.judge import judge
from tailwatch.processes import find_by_token
from tailwatch.records import StepRecord
from tailwatch.steplog import read_steplog
from tailwatch.verdicts import ReportDocument

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> GameDay:
    """A whole game day of all four experiments."""
    directory = tmp_path_factory.mktemp("whole")
    day = GameDay(small_plan(directory / "plan.json"), directory / "day")
    day.wait(480)
    return day


def _experiment(day: GameDay, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(e for e in day.report()["experiments"] if e["name"] == name)
    return found


def test_a_whole_game_day_passes(whole: GameDay) -> None:
    """All four hypotheses hold, the exit status is 0, and the output names the report."""
    verdicts = {e["name"]: (e["verdict"], e["reason"]) for e in whole.report()["experiments"]}
    assert whole.process.returncode == 0, (verdicts, whole.output())
    assert [verdict for verdict, _ in verdicts.values()] == ["PASSED"] * 4
    assert str(whole.out / "report" / "report.html") in whole.output()


def test_the_slow_rank_is_named(whole: GameDay) -> None:
    """The delivered straggler alert has the rank and node that were slowed, and no other."""
    slow = _experiment(whole, "rank-slow")
    accused = [a["labels"] for a in slow["alerts"] if a["name"] == "RankStraggler"]
    assert {(a["rank"], a["node"]) for a in accused} == {("2", "node-1")}
    assert 0 < slow["detection_seconds"] < 30
    assert slow["restart"] is None


def test_a_killed_rank_costs_the_steps_since_the_newest_verified_checkpoint(
    whole: GameDay,
) -> None:
    """The new attempt resumes from the newest verified checkpoint, no other."""
    restart = _experiment(whole, "rank-kill")["restart"]
    assert restart["resumed_from_step"] == restart["newest_verified_step"]
    assert 0 <= restart["steps_lost"] <= 2 * 40


def test_the_corrupt_checkpoint_is_named_and_the_one_before_is_used(whole: GameDay) -> None:
    """File and block of the refusal are those that were damaged, and the damage is set aside."""
    corrupt = _experiment(whole, "checkpoint-corrupt")
    events = [json.loads(line) for line in (whole.out / "events.jsonl").read_text().splitlines()]
    timeline = [json.loads(line) for line in whole.timeline().splitlines()]
    [refused] = [e["detail"] for e in events if e["kind"] == "checkpoint_refused"]
    [target] = [
        o["data"]
        for o in timeline
        if o["kind"] == "target" and o.get("experiment") == "checkpoint-corrupt"
    ]
    assert (refused["file"], refused["block"]) == (target["file"], target["block"])
    assert corrupt["restart"]["resumed_from_step"] < target["checkpoint_step"]
    assert list((whole.out / "checkpoints").glob("*.bad-*"))


def test_steps_computed_again_give_the_same_loss_to_the_last_digit(whole: GameDay) -> None:
    """At equal world size a recomputed step has the identical loss."""
    losses: dict[tuple[int, int], dict[int, float]] = {}
    for path in (whole.out / "evidence" / "steps").iterdir():
        for record in read_steplog(path):
            if isinstance(record, StepRecord) and record.loss is not None:
                of = losses.setdefault((record.step, record.world_size), {})
                assert of.setdefault(record.attempt, record.loss) == record.loss
    again = [by_attempt for by_attempt in losses.values() if len(by_attempt) > 1]
    assert len(again) >= 10
    assert all(len(set(by_attempt.values())) == 1 for by_attempt in again)


def test_p99_of_the_report_is_what_ten_lines_of_numpy_say(whole: GameDay) -> None:
    """Estimate and n of the baseline come out of the step log again."""
    timeline = [json.loads(line) for line in whole.timeline().splitlines()]
    window = next(o["data"] for o in timeline if o["kind"] == "baseline")
    slowest: dict[int, int] = {}
    for path in (whole.out / "evidence" / "steps").iterdir():
        for record in read_steplog(path):
            if not isinstance(record, StepRecord) or record.attempt != window["attempt"]:
                continue
            if window["first_step"] <= record.step <= window["last_step"]:
                slowest[record.step] = max(slowest.get(record.step, 0), record.duration_ns)
    seconds = np.sort(np.array(list(slowest.values()))) / 1e9
    baseline = whole.report()["baseline"]
    assert baseline["n"] == len(seconds)
    assert baseline["estimate"] == seconds[int(np.ceil(0.99 * len(seconds))) - 1]
    assert baseline["n_eff"] >= 299


def test_the_judge_says_the_same_offline(whole: GameDay) -> None:
    """Judging the directory again, as a library and as a command, gives the same document."""
    again = judge(whole.out / "evidence")
    assert isinstance(again, ReportDocument)
    command = [sys.executable, "-m", "tailwatch", "gameday", "judge", str(whole.out), "--json"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout) == whole.report()
    assert again.verdict == whole.report()["verdict"]


def test_nothing_is_left_behind(whole: GameDay) -> None:
    """No process of the run lives on, its scratch is gone, and a doctor finds nothing."""
    driver = whole.driver()
    assert find_by_token(driver["token"]) == []
    assert not any(Path(path).exists() for path in driver["scratch"])
    command = [sys.executable, "-m", "tailwatch", "gameday", "doctor", str(whole.out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "nothing was left (1 runs looked at)\n")
