"""Steps of the job, as records come in: the same as when the whole log is read afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ranks import step_record
from tailwatch.agents.job import assemble
from tailwatch.agents.job.assemble import Assembler, CompleteStep
from tailwatch.jobsteps import job_steps
from tailwatch.records import StepRecord


def feed(assembler: Assembler, records: list[StepRecord]) -> list[CompleteStep]:
    """Give records to an assembler and return the job steps they complete."""
    done = [assembler.add(f"node-{r.rank // 2}", 10 * i, r) for i, r in enumerate(records)]
    return [step for step in done if step is not None]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_same_steps_as_from_the_whole_log(data: st.DataObject) -> None:
    """Ranks' records in any interleaving, with duplicates, give the job steps of `job_steps`."""
    queues: list[list[StepRecord]] = []
    for rank in range(4):
        records = []
        for step in range(1, 6):
            changes: dict[str, Any] = {
                "duration_ns": data.draw(st.integers(1, 10**9)),
                "waits_ns": {"ep": data.draw(st.integers(0, 10**8))},
                "warmup": step == 1,
            }
            records.append(step_record(rank, step, **changes))
            if data.draw(st.booleans()):
                records.append(records[-1])
        queues.append(records)
    merged: list[StepRecord] = []
    while any(queues):
        queue = data.draw(st.sampled_from([q for q in queues if q]))
        merged.append(queue.pop(0))
    found = feed(Assembler(), merged)
    assert [s.job.step for s in found] == [1, 2, 3, 4, 5]
    assert [s.job for s in found] == job_steps(merged)
    nodes = {0: "node-0", 1: "node-0", 2: "node-1", 3: "node-1"}
    assert all(s.nodes == nodes for s in found)


def test_killed_step_is_no_step() -> None:
    """A step that lacks a rank is never complete, and its rank's later steps are."""
    assembler = Assembler()
    records = [step_record(rank, 1) for rank in range(3)]
    records += [step_record(rank, 2) for rank in range(4)]
    assert [s.job.step for s in feed(assembler, records)] == [2]
    assert feed(assembler, [step_record(3, 1)]) == []
    assert assembler.oldest_held() == {}


def test_step_computed_again_is_a_step_of_its_own_attempt() -> None:
    """The same step number counts once in each attempt."""
    assembler = Assembler()
    for attempt in (1, 2):
        records = [step_record(rank, 7, attempt=attempt) for rank in range(4)]
        assert [s.job.attempt for s in feed(assembler, records)] == [attempt]


def test_late_records_of_a_superseded_attempt_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unfinished steps of an older attempt wait for a while, and are then forgotten."""
    assembler = Assembler()
    feed(assembler, [step_record(rank, 1) for rank in range(3)])
    feed(assembler, [step_record(rank, 2) for rank in range(3)])
    assembler.drop_superseded(2)
    assert len(feed(assembler, [step_record(3, 1)])) == 1
    monkeypatch.setattr(assemble, "GRACE_SECONDS", 0.0)
    assembler.drop_superseded(2)
    assert feed(assembler, [step_record(3, 2)]) == []


def test_oldest_held_is_where_to_read_again() -> None:
    """The place of the oldest record that waits is known for each node."""
    assembler = Assembler()
    feed(assembler, [step_record(0, 1), step_record(2, 1), step_record(1, 1), step_record(0, 2)])
    assert assembler.oldest_held() == {"node-0": 0, "node-1": 10}


def test_pending_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """When one rank stays silent for ever, the oldest steps are given up and memory is not."""
    monkeypatch.setattr(assemble, "MAX_PENDING_RECORDS", 30)
    assembler = Assembler()
    feed(assembler, [step_record(rank, step) for step in range(1, 100) for rank in range(3)])
    assert len(feed(assembler, [step_record(3, step) for step in range(1, 100)])) == 10


def test_expert_load_counts_all_ranks() -> None:
    """The busiest expert over the mean of all, its tokens summed over the ranks that hold it."""
    records = [
        step_record(0, 1, first_expert=0, expert_tokens=[10, 20]),
        step_record(1, 1, first_expert=2, expert_tokens=[30, 40]),
        step_record(2, 1, first_expert=0, expert_tokens=[10, 20]),
        step_record(3, 1, first_expert=2, expert_tokens=[30, 40]),
    ]
    (done,) = feed(Assembler(), records)
    assert done.expert_load_max_ratio == pytest.approx(80 / 50)
    empty = [step_record(rank, 1, expert_tokens=[]) for rank in range(4)]
    assert feed(Assembler(), empty)[0].expert_load_max_ratio is None


def test_phases_add_up_to_the_mean_step() -> None:
    """Phases of a job step are means over its ranks."""
    records = [step_record(r, 1, phases_ns={"data": r * 10**9, "eval": 10**9}) for r in range(4)]
    (done,) = feed(Assembler(), records)
    assert done.phases_s == pytest.approx({"data": 1.5, "eval": 1.0})
