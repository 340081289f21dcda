"""The judge on whole game days: numbers, undo, recovery, baseline."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from support.evidence import build_evidence
from support.evidence_edits import (
    edit_deliveries,
    edit_lines,
    edit_records,
    edit_timeline,
    moment,
)
from support.evidence_job import SECOND
from support.evidence_plan import ALL_FAULTS
from support.judged import outcome, verdicts
from tailwatch.chaos.judge import judge
from tailwatch.evidence import FaultKind
from tailwatch.records import StepRecord
from tailwatch.steplog import read_steplog


def test_a_game_day_as_planned_passes(whole: Path) -> None:
    """Complete evidence of four faults with the expected reactions is PASSED throughout."""
    document = judge(whole)
    assert document.verdict == "PASSED", document.reason
    assert verdicts(document) == ["PASSED"] * 4
    assert all(check.passed for e in document.experiments for check in e.checks)
    assert [e.undo for e in document.experiments] == ["done", "none", "none", "done"]


@pytest.mark.parametrize("fault", ALL_FAULTS)
def test_each_fault_alone_passes(fault: FaultKind, tmp_path: Path) -> None:
    """A game day with a single experiment passes too, with another seed."""
    document = judge(build_evidence(tmp_path, faults=[fault], seed=7))
    assert (document.verdict, len(document.experiments)) == ("PASSED", 1), document.reason


def test_judging_twice_gives_the_same_document(
    evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict depends on the directory's content alone, not on place, time or environment."""
    first = msgspec.json.encode(judge(evidence))
    moved = evidence.rename(evidence.with_name("elsewhere"))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.chdir("/")
    assert msgspec.json.encode(judge(moved)) == first


def test_reported_p99_is_that_of_ten_lines_of_numpy(whole: Path) -> None:
    """Estimate and n of every window are those of the step log, recomputed without the judge."""
    rows = [r for log in sorted(whole.glob("steps/*")) for r in read_steplog(log)]
    steps: dict[tuple[int, int], list[StepRecord]] = {}
    for r in rows:
        assert isinstance(r, StepRecord)
        steps.setdefault((r.attempt, r.step), []).append(r)
    whole_steps = [v for _, v in sorted(steps.items()) if len(v) == v[0].world_size]
    start = np.array([min(r.start_ns for r in v) for v in whole_steps])
    end = np.array([max(r.start_ns + r.duration_ns for r in v) for v in whole_steps])
    took = np.array([max(r.duration_ns for r in v) / 1e9 for v in whole_steps])
    grpo = np.array([v[0].stage == "grpo" and not v[0].warmup for v in whole_steps])
    number = np.array([v[0].step for v in whole_steps])
    slow = outcome(judge(whole), "rank-slow")
    assert slow.p99 is not None
    begin = moment(whole, "injected", "rank-slow")
    undone = moment(whole, "undone", "rank-slow")
    windows = (
        (slow.p99.baseline, took[(number >= 51) & (number <= 380) & grpo]),
        (slow.p99.during, took[grpo & (start >= begin) & (end <= undone)]),
        (slow.p99.after, took[grpo & (start >= undone)][:150]),
    )
    for reported, samples in windows:
        assert reported is not None
        assert reported.n == len(samples)
        expected = np.quantile(samples, 0.99, method="inverted_cdf")
        assert reported.estimate == pytest.approx(expected, abs=0)
    assert slow.p99.baseline is not None
    assert slow.p99.after is not None
    assert (slow.p99.baseline.n, slow.p99.after.n, slow.p99.after.upper) == (330, 150, None)


def test_detection_and_recovery_run_from_the_injection(whole: Path) -> None:
    """Detection ends at the first expected delivery, recovery with the last counted step."""
    slow = outcome(judge(whole), "rank-slow")
    assert slow.detection_seconds == pytest.approx(3.3, abs=1e-6)
    assert slow.recovery_seconds is not None
    assert 15.0 + 150 * 0.1 < slow.recovery_seconds < 15.0 + 150 * 0.15


def test_restarts_are_told_with_the_steps_they_cost(whole: Path) -> None:
    """The report names the new attempt, where it resumed, what was newest and what was lost."""
    document = judge(whole)
    assert outcome(document, "rank-slow").restart is None
    corrupt = outcome(document, "checkpoint-corrupt").restart
    assert corrupt is not None
    assert corrupt.newest_verified_step is not None
    assert corrupt.resumed_from_step == corrupt.newest_verified_step - 25
    assert corrupt.steps_lost is not None
    assert corrupt.steps_lost > 25
    drain = outcome(document, "node-drain").restart
    assert drain is not None
    assert drain.steps_lost == 0


@pytest.mark.parametrize("state", ["open", "failed"])
def test_an_open_ledger_entry_is_undo_failed(evidence: Path, state: str) -> None:
    """A ledger whose last word is not undone outranks everything else."""

    def edit(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["experiment"] == "rank-slow" and line["state"] == "undone":
            return {**line, "state": state, "reason": "blocked"}
        return line

    edit_lines(evidence / "ledger.jsonl", edit)
    document = judge(evidence)
    assert (document.verdict, verdicts(document)[0]) == ("UNDO_FAILED", "UNDO_FAILED")
    assert outcome(document, "rank-slow").undo == "failed"


def test_undo_that_the_runner_did_not_see_is_undo_failed(evidence: Path) -> None:
    """An undo that the runner looked for at the target and did not find has failed."""
    edit_timeline(evidence, "undo_seen", "node-drain", seen=False)
    assert outcome(judge(evidence), "node-drain").verdict == "UNDO_FAILED"


def test_undo_that_left_the_others_waiting_is_undo_failed(tmp_path: Path) -> None:
    """Ledger and runner may claim what they like: peers that still wait show a fault in force."""
    evidence = build_evidence(tmp_path, faults=["rank-slow"], undo_works=False)
    edit_timeline(evidence, "undo_seen", "rank-slow", seen=True)
    slow = outcome(judge(evidence), "rank-slow")
    assert (slow.verdict, slow.undo) == ("UNDO_FAILED", "failed")
    assert "wait" in slow.reason


def test_an_undo_nobody_looked_for_is_no_pass(evidence: Path) -> None:
    """Without the look at the target after the undo the experiment is INCONCLUSIVE."""
    edit_timeline(evidence, "undo_seen", "node-drain")
    assert verdicts(judge(evidence)) == ["PASSED", "PASSED", "PASSED", "INCONCLUSIVE"]


def test_slow_after_the_undo_is_deviated(tmp_path: Path) -> None:
    """A fault that is gone while every step is still slow is a recovery that did not happen."""
    evidence = build_evidence(tmp_path, faults=["rank-slow", "rank-kill"], drag_after_undo=0.08)
    document = judge(evidence)
    assert verdicts(document) == ["DEVIATED", "BASELINE_NOT_MET"]
    assert "of the first 150 steps" in outcome(document, "rank-slow").reason


def test_six_slow_steps_after_the_undo_are_one_too_many(whole: Path, tmp_path: Path) -> None:
    """Five steps above the bound are within the rule, a sixth is not."""
    begin = moment(whole, "undone", "rank-slow")
    for count, expected in ((5, "PASSED"), (6, "DEVIATED")):
        evidence = Path(shutil.copytree(whole, tmp_path / str(count)))
        first = min(
            r.step
            for r in read_steplog(evidence / "steps/node-0.steplog")
            if isinstance(r, StepRecord) and r.start_ns > begin
        )

        def slow(record: StepRecord, first: int = first, count: int = count) -> StepRecord:
            if record.attempt == 1 and first + 10 <= record.step < first + 10 + count:
                record.duration_ns += SECOND // 5
            return record

        edit_records(evidence, slow)
        assert outcome(judge(evidence), "rank-slow").verdict == expected


def test_too_few_steps_after_the_undo_are_inconclusive(tmp_path: Path) -> None:
    """Recovery is not judged from fewer steps than the criteria ask for."""
    evidence = build_evidence(tmp_path, faults=["rank-slow"], recovery_steps=100)
    slow = outcome(judge(evidence), "rank-slow")
    assert slow.verdict == "INCONCLUSIVE"
    assert "Only 1" in slow.reason


def test_short_baseline_is_baseline_not_met(tmp_path: Path) -> None:
    """Fewer independent steps than p99 needs make no baseline, whatever the timeline says of it."""
    evidence = build_evidence(tmp_path, faults=["rank-slow"], baseline_steps=200)
    document = judge(evidence)
    assert document.verdict == "BASELINE_NOT_MET"
    assert "below 299" in document.reason


def test_a_baseline_that_was_never_reached_is_named(evidence: Path) -> None:
    """When the runner gave up on the baseline, every experiment is BASELINE_NOT_MET with why."""

    def edit(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["kind"] == "baseline":
            return {**line, "kind": "baseline_not_met", "data": {"reason": "n_eff 120 in 240 s"}}
        return None if line.get("experiment") else line

    edit_lines(evidence / "timeline.jsonl", edit)
    edit_lines(evidence / "ledger.jsonl", lambda line: None)
    document = judge(evidence)
    assert verdicts(document) == ["BASELINE_NOT_MET"] * 4
    assert "n_eff 120 in 240 s" in document.reason


def test_missing_baseline_records_are_inconclusive(evidence: Path) -> None:
    """A baseline whose records are gone cannot be recomputed, so nothing can be compared."""
    edit_records(evidence, lambda r: None if 100 <= r.step < 200 else r)
    document = judge(evidence)
    assert document.verdict == "INCONCLUSIVE"
    assert "230 of 330" in document.reason


def test_an_alert_cannot_pass_unseen(evidence: Path) -> None:
    """Removing every delivery makes every experiment DEVIATED."""
    edit_deliveries(evidence, lambda alert: None)
    assert verdicts(judge(evidence)) == ["DEVIATED"] * 4


def test_no_kill_is_inconclusive_and_not_undo_failed(tmp_path: Path) -> None:
    """A rank that was never killed is INCONCLUSIVE, although no new attempt showed."""
    evidence = build_evidence(tmp_path, faults=["rank-slow"], inject=False)
    plan = (evidence / "plan.json").read_bytes().replace(b'"rank-slow"', b'"rank-kill"')
    plan = plan.replace(b'"delay_seconds": 0.1,', b"")
    (evidence / "plan.json").write_bytes(plan)
    for name in ("timeline.jsonl", "ledger.jsonl"):
        lines = (evidence / name).read_bytes().replace(b'"rank-slow"', b'"rank-kill"')
        (evidence / name).write_bytes(lines)
    edit_timeline(evidence, "undo_seen", "rank-kill", seen=False)
    document = judge(evidence)
    assert document.verdict == "INCONCLUSIVE"
