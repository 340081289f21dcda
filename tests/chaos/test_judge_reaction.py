"""One fact of the reaction changed, and the experiment deviates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.evidence import build_evidence
from support.evidence_edits import (
    edit_attempt,
    edit_event,
    edit_lines,
    edit_records,
    edit_timeline,
    moment,
)
from support.evidence_job import RUN, SECOND
from support.judged import check, judged
from tailwatch.records import Event, StepRecord, event_line


def test_a_restart_during_a_slow_rank_is_deviated(evidence: Path) -> None:
    """A slow rank must not restart the job."""
    begin = moment(evidence, "injected", "rank-slow")
    claim = {"attempt": 9, "world_size": 4, "started_ns": begin + SECOND, "ranks": []}
    (evidence / "attempts/0009.json").write_bytes(msgspec.json.encode(claim))
    assert judged(evidence, "rank-slow").verdict == "DEVIATED"


def test_a_restart_from_an_older_checkpoint_is_deviated(evidence: Path) -> None:
    """A restart that throws verified work away deviates, even when claim and event agree."""
    edit_attempt(evidence, 2, resumed_from_step=600)
    edit_event(evidence, "restore", 2, step=600)
    kill = judged(evidence, "rank-kill")
    assert kill.verdict == "DEVIATED"
    assert "newest verified checkpoint is step 625" in kill.reason


def test_a_checkpoint_verified_only_by_its_restore_counts(evidence: Path) -> None:
    """A kill between commit and verification leaves the newest checkpoint to the restore."""

    def edit(line: dict[str, Any]) -> dict[str, Any] | None:
        cut = line["kind"] == "checkpoint_verified" and line.get("step") == 625
        return None if cut and line["attempt"] == 1 else line

    assert edit_lines(evidence / "events.jsonl", edit) == 1
    assert judged(evidence, "rank-kill").verdict == "PASSED"


def test_a_step_the_others_were_still_writing_disproves_no_kill(evidence: Path) -> None:
    """Other ranks may end the last step a moment after the victim died."""
    killed = moment(evidence, "injected", "rank-kill")

    def edit(record: StepRecord) -> StepRecord:
        if (record.attempt, record.rank, record.step) == (1, 0, 627):
            record.duration_ns = killed + 5_000_000 - record.start_ns
        return record

    assert edit_records(evidence, edit) == 1
    assert judged(evidence, "rank-kill").verdict == "PASSED"


def test_a_restore_event_that_disagrees_is_deviated(evidence: Path) -> None:
    """Claim, restore event and first record must tell the same story."""
    edit_event(evidence, "restore", 2, step=600)
    assert judged(evidence, "rank-kill").verdict == "DEVIATED"


def test_a_restart_that_only_its_claim_tells_of_is_inconclusive(evidence: Path) -> None:
    """Without the restore event nobody but the claim says where the attempt resumed."""
    edit_event(evidence, "restore", 2)
    assert judged(evidence, "rank-kill").verdict == "INCONCLUSIVE"


def test_a_restart_from_nothing_is_deviated(evidence: Path) -> None:
    """An attempt that neither claims nor reports a checkpoint began from nothing."""
    edit_event(evidence, "restore", 2)
    edit_attempt(evidence, 2, resumed_from_step=None)
    assert judged(evidence, "rank-kill").verdict == "DEVIATED"


def test_a_wrong_first_step_is_deviated(evidence: Path) -> None:
    """The new attempt begins with the step after the checkpoint, no other."""

    def edit(record: StepRecord) -> StepRecord | None:
        return None if (record.attempt, record.step) == (2, 626) else record

    assert edit_records(evidence, edit) == 4
    kill = judged(evidence, "rank-kill")
    assert kill.verdict == "DEVIATED"
    assert "began with step 627" in kill.reason


def test_a_loss_that_differs_in_the_last_digit_is_deviated(evidence: Path) -> None:
    """One bit of one rank's loss in one repeated step is enough."""

    def edit(record: StepRecord) -> StepRecord:
        if (record.attempt, record.step, record.rank) == (3, 760, 1) and record.loss is not None:
            record.loss = math.nextafter(record.loss, math.inf)
        return record

    assert edit_records(evidence, edit) == 1
    corrupt = judged(evidence, "checkpoint-corrupt")
    assert corrupt.verdict == "DEVIATED"
    assert "the first is 760" in corrupt.reason


def test_two_restarts_for_one_kill_are_deviated(evidence: Path) -> None:
    """A kill calls for exactly one new attempt."""
    begin = moment(evidence, "injected", "rank-kill")
    claim = {"attempt": 9, "world_size": 4, "started_ns": begin + 9 * SECOND, "ranks": []}
    (evidence / "attempts/0009.json").write_bytes(msgspec.json.encode(claim))
    kill = judged(evidence, "rank-kill")
    assert kill.verdict == "DEVIATED"
    assert check(kill, "reaction: attempts") is False


def test_a_smaller_world_after_a_kill_is_deviated(evidence: Path) -> None:
    """After a kill the job must come back with all its ranks."""
    edit_attempt(evidence, 2, world_size=2)
    assert judged(evidence, "rank-kill").verdict == "DEVIATED"


def test_a_corrupt_checkpoint_that_is_not_refused_is_deviated(evidence: Path) -> None:
    """Nobody refused it: the deviation that the experiment is there to find."""
    edit_event(evidence, "checkpoint_refused", 3)
    corrupt = judged(evidence, "checkpoint-corrupt")
    assert corrupt.verdict == "DEVIATED"
    assert "No checkpoint was refused" in corrupt.reason


@pytest.mark.parametrize("change", [{"file": "__0_0.distcp"}, {"block": 4}])
def test_a_refusal_that_names_another_place_is_deviated(
    evidence: Path, change: dict[str, Any]
) -> None:
    """File and block of the refusal must be those that were made corrupt."""
    place = {"file": "__2_0.distcp", "block": 3, "quarantined_as": "q", "steps_lost": 25}
    edit_event(evidence, "checkpoint_refused", 3, detail={**place, **change})
    assert judged(evidence, "checkpoint-corrupt").verdict == "DEVIATED"


def test_a_refused_checkpoint_outside_quarantine_is_deviated(evidence: Path) -> None:
    """A refused checkpoint that stays where it was would be met again."""
    edit_event(evidence, "checkpoint_refused", 3, detail={"file": "__2_0.distcp", "block": 3})
    corrupt = judged(evidence, "checkpoint-corrupt")
    assert corrupt.verdict == "DEVIATED"
    assert check(corrupt, "reaction: quarantine") is False


def test_a_drain_without_a_checkpoint_at_the_leave_is_deviated(evidence: Path) -> None:
    """A node that leaves without a checkpoint of the last step costs work."""

    def edit(line: dict[str, Any]) -> dict[str, Any] | None:
        mine = line["kind"] == "checkpoint_committed" and line.get("step") == 919
        return None if mine else line

    assert edit_lines(evidence / "events.jsonl", edit) == 1
    assert judged(evidence, "node-drain").verdict == "DEVIATED"


@pytest.mark.parametrize("number", [4, 5])
def test_a_step_lost_at_a_change_of_the_world_is_deviated(evidence: Path, number: int) -> None:
    """Leave and return are planned: neither may cost a step."""
    path = evidence / "attempts" / f"{number:04d}.json"
    resumed = msgspec.json.decode(path.read_bytes())["resumed_from_step"]
    edit_attempt(evidence, number, resumed_from_step=resumed - 1)
    assert judged(evidence, "node-drain").verdict == "DEVIATED"


def test_a_node_that_does_not_come_back_is_deviated(evidence: Path) -> None:
    """Without an attempt of the full world after the return the drain is not over."""
    (evidence / "attempts/0005.json").unlink()
    edit_records(evidence, lambda record: None if record.attempt == 5 else record)
    assert judged(evidence, "node-drain").verdict == "DEVIATED"


@pytest.mark.parametrize("stated", [{}, {"steps_lost": 3}])
def test_steps_lost_that_are_not_stated_or_wrong_are_deviated(
    evidence: Path, stated: dict[str, int]
) -> None:
    """The job must say what the refusal cost, and say what the records say."""
    place = {"file": "__2_0.distcp", "block": 3, "quarantined_as": "q"}
    edit_event(evidence, "checkpoint_refused", 3, detail={**place, **stated})
    corrupt = judged(evidence, "checkpoint-corrupt")
    assert corrupt.verdict == "DEVIATED"
    assert check(corrupt, "reaction: steps lost") is False


def test_a_kill_needs_no_look_at_an_undo(evidence: Path) -> None:
    """Nothing of a kill is left to undo, whatever the runner saw afterwards."""
    edit_timeline(evidence, "undo_seen", "rank-kill", seen=False)
    kill = judged(evidence, "rank-kill")
    assert (kill.verdict, kill.undo) == ("PASSED", "none")


def second_attempt_is_third(evidence: Path) -> None:
    """Give attempt 2 the number 3, as if another one had come before it."""
    path = evidence / "attempts/0002.json"
    edit_attempt(evidence, 2, attempt=3)
    path.rename(path.with_name("0003.json"))

    def record(record: StepRecord) -> StepRecord:
        record.attempt = 3 if record.attempt == 2 else record.attempt
        return record

    assert edit_records(evidence, record)

    def event(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, "attempt": 3 if line["attempt"] == 2 else line["attempt"]}

    assert edit_lines(evidence / "events.jsonl", event)


@pytest.mark.parametrize("claimed", [True, False])
def test_an_attempt_that_died_before_it_began_counts(tmp_path: Path, claimed: bool) -> None:
    """An empty claim, or a number nobody has, was an attempt: the job did not come back as one."""
    evidence = build_evidence(tmp_path, faults=["rank-kill"])
    second_attempt_is_third(evidence)
    if claimed:
        (evidence / "attempts/0002.json").touch()
    kill = judged(evidence, "rank-kill")
    assert kill.verdict == "DEVIATED"
    assert "2, which died before it began, 3 with 4 ranks; expected was 2." in kill.reason
    assert check(kill, "reaction: attempts") is False


@pytest.mark.parametrize(
    ("name", "number"), [("rank-slow", 2), ("rank-kill", 3), ("checkpoint-corrupt", 3)]
)
def test_a_restart_that_only_an_event_tells_of_counts(
    tmp_path: Path, name: Any, number: int
) -> None:
    """An attempt that left a restart event and no claim restarted the job."""
    evidence = build_evidence(tmp_path, faults=[name])
    at = moment(evidence, "undone", name) + SECOND
    event = Event(run=RUN, attempt=number, time_ns=at, kind="restart", source="rank/0")
    with (evidence / "events.jsonl").open("ab") as file:
        file.write(event_line(event))
    found = judged(evidence, name)
    assert found.verdict == "DEVIATED"
    assert f"{number}" in found.reason


def test_a_claim_after_the_last_step_of_the_day_is_nobodys_restart(evidence: Path) -> None:
    """An empty claim that came after everything else lies behind the last experiment."""
    (evidence / "attempts/0006.json").touch()
    assert judged(evidence, "node-drain").verdict == "PASSED"
