"""One trace of the fault changed, and the experiment proves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.evidence import build_evidence
from support.evidence_edits import (
    edit_lines,
    edit_records,
    edit_timeline,
    moment,
)
from support.evidence_job import SECOND
from support.judged import check, judged
from tailwatch.records import StepRecord

FAULTS = ("rank-slow", "rank-kill", "checkpoint-corrupt", "node-drain")


@pytest.mark.parametrize("name", FAULTS)
def test_an_injection_that_was_not_seen_is_inconclusive(evidence: Path, name: str) -> None:
    """A runner that looked and did not see the fault makes good and bad outcomes worthless."""
    edit_timeline(evidence, "injection_seen", name, seen=False)
    assert judged(evidence, name).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize("name", FAULTS)
def test_an_injection_nobody_looked_for_is_inconclusive(evidence: Path, name: str) -> None:
    """Without a verification at the target there is no verdict on the reaction."""
    edit_timeline(evidence, "injection_seen", name)
    assert judged(evidence, name).verdict == "INCONCLUSIVE"


def test_no_injection_is_inconclusive_and_not_deviated(tmp_path: Path) -> None:
    """A fault that was never there, though claimed, is INCONCLUSIVE for want of waiting peers."""
    evidence = build_evidence(tmp_path, faults=["rank-slow"], inject=False)
    edit_timeline(evidence, "injection_seen", "rank-slow", seen=True)
    slow = judged(evidence, "rank-slow")
    assert slow.verdict == "INCONCLUSIVE"
    assert check(slow, "injection: others waited") is False
    assert check(slow, "injection: throughput") is False
    assert slow.detection_seconds is None


def test_a_slowness_that_the_target_waits_for_is_not_its_own(evidence: Path) -> None:
    """When the target waits as well, somebody else was slow and the injection is not verified."""

    def edit(record: StepRecord) -> StepRecord:
        if record.rank == 3 and 381 <= record.step < 440:
            record.waits_ns = {"ep": SECOND // 10}
        return record

    edit_records(evidence, edit)
    slow = judged(evidence, "rank-slow")
    assert slow.verdict == "INCONCLUSIVE"
    assert check(slow, "injection: target did not wait") is False


def test_removed_step_series_are_inconclusive(evidence: Path) -> None:
    """Without the records of the fault window a slow rank is not verified."""
    edit_records(evidence, lambda r: None if 381 <= r.step < 450 and r.attempt == 1 else r)
    assert judged(evidence, "rank-slow").verdict == "INCONCLUSIVE"


def test_a_killed_rank_that_goes_on_was_not_killed(evidence: Path) -> None:
    """A record of the victim after the injection disproves the kill."""

    def edit(record: StepRecord) -> StepRecord:
        if (record.attempt, record.rank, record.step) == (1, 1, 627):
            record.start_ns += SECOND
        return record

    edit_records(evidence, edit)
    kill = judged(evidence, "rank-kill")
    assert kill.verdict == "INCONCLUSIVE"
    assert check(kill, "injection: rank silent") is False


def test_an_injection_without_a_ledger_entry_is_inconclusive(evidence: Path) -> None:
    """A fault whose undo was not written down before it is no experiment to pass."""

    def edit(line: dict[str, Any]) -> dict[str, Any] | None:
        opened = line["experiment"] == "rank-kill" and line["state"] == "open"
        return None if opened else line

    assert edit_lines(evidence / "ledger.jsonl", edit) == 1
    assert judged(evidence, "rank-kill").verdict == "INCONCLUSIVE"


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("kind", ["target", "injecting", "injected", "undone"])
def test_a_moment_that_is_missing_is_inconclusive(evidence: Path, name: str, kind: str) -> None:
    """Whatever line of the timeline a verdict rests on, without it there is none."""
    edit_timeline(evidence, kind, name)
    assert judged(evidence, name).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize("changes", [{"pid": 1}, {"start_ticks": 5}])
def test_another_process_than_the_rank_is_no_kill(evidence: Path, changes: dict[str, int]) -> None:
    """The process that died must be the one that the attempt's claim names for the rank."""
    edit_timeline(evidence, "injection_seen", "rank-kill", **changes)
    kill = judged(evidence, "rank-kill")
    assert kill.verdict == "INCONCLUSIVE"
    assert check(kill, "injection: process") is False


def test_equal_digests_are_no_corruption(evidence: Path) -> None:
    """Bytes on disk that still match the manifest were not made corrupt."""
    edit_timeline(evidence, "injection_seen", "checkpoint-corrupt", found="9f" * 16)
    corrupt = judged(evidence, "checkpoint-corrupt")
    assert corrupt.verdict == "INCONCLUSIVE"
    assert check(corrupt, "injection: bytes changed") is False


def test_a_node_that_goes_on_did_not_leave(evidence: Path) -> None:
    """A record from the drained node while it should be away disproves the drain."""
    seen = moment(evidence, "injection_seen", "node-drain")

    def edit(record: StepRecord) -> StepRecord:
        if (record.attempt, record.rank, record.step) == (3, 3, 919):
            record.start_ns = seen + SECOND
        return record

    assert edit_records(evidence, edit) == 1
    drain = judged(evidence, "node-drain")
    assert drain.verdict == "INCONCLUSIVE"
    assert check(drain, "injection: node silent") is False
