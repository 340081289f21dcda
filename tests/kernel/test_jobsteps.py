"""Job steps, put together from the records of ranks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tailwatch.jobsteps import durations, job_steps, lateness
from tailwatch.records import Event, StepRecord


def record(rank: int, step: int = 1, attempt: int = 1, **fields: Any) -> StepRecord:
    """A record of one of four ranks."""
    defaults: dict[str, Any] = {
        "run": "r",
        "iteration": 1,
        "node": f"node-{rank // 2}",
        "world_size": 4,
        "configuration": "toy/ep4",
        "stage": "grpo",
        "start_ns": 1_000 + rank,
        "start_mono_ns": 0,
        "duration_ns": 100_000_000 + rank,
        "phases_ns": {},
        "waits_ns": {"ep": 10_000_000},
        "loss": 1.5,
    }
    return StepRecord(rank=rank, step=step, attempt=attempt, **{**defaults, **fields})


def test_a_step_is_one_sample_of_the_job() -> None:
    """Four records make one job step, as long as its longest rank."""
    (step,) = job_steps(record(rank) for rank in range(4))
    assert (step.attempt, step.step, step.world_size) == (1, 1, 4)
    assert step.duration_s == 0.100000003
    assert (step.start_ns, step.end_ns) == (1_000, 1_003 + 100_000_003)
    assert step.comparable


def test_a_step_that_lacks_a_rank_is_none() -> None:
    """A step in which a rank was killed is no sample, however fast the others were."""
    assert job_steps(record(rank) for rank in range(3)) == []


def test_each_attempt_has_its_own_steps() -> None:
    """The same step computed again by a later attempt is a second job step, in order."""
    records = [record(rank, step=s, attempt=a) for a in (2, 1) for s in (5, 4) for rank in range(4)]
    random.Random(0).shuffle(records)
    assert [(s.attempt, s.step) for s in job_steps(records)] == [(1, 4), (1, 5), (2, 4), (2, 5)]


def test_a_record_logged_twice_counts_once() -> None:
    """A record that the agent logged again does not stand in for a rank that is missing."""
    assert job_steps([record(0), record(0), record(1), record(2)]) == []
    assert len(job_steps([*(record(rank) for rank in range(4)), record(2)])) == 1


def test_events_are_passed_over() -> None:
    """Step logs hold events too; they are no steps."""
    event = Event(run="r", attempt=1, time_ns=1, kind="start", source="rank/0")
    assert len(job_steps([event, *(record(rank) for rank in range(4))])) == 1


def test_the_late_rank_is_the_one_that_does_not_wait() -> None:
    """Lateness is how much less a rank waits than the median of the others, never negative."""
    waits = {0: 0.051, 1: 0.049, 2: 0.001, 3: 0.050}
    late = lateness(waits)
    assert late[2] == pytest.approx(0.049)
    assert [rank for rank, seconds in late.items() if seconds > 0.01] == [2]
    assert min(late.values()) == 0.0


def test_a_rank_alone_is_never_late() -> None:
    """Without peers there is nobody to be late for."""
    assert lateness({0: 0.5}) == {0: 0.0}


def test_a_wait_that_was_not_measured_is_absent() -> None:
    """A rank without the wait has no entry; it is not taken for one that waits 0."""
    records = [record(rank, waits_ns={} if rank == 1 else {"ep": 1_000}) for rank in range(4)]
    (step,) = job_steps(records)
    assert set(step.wait_s) == set(step.late_s) == {0, 2, 3}


@pytest.mark.parametrize("fields", [{"stage": "sft"}, {"warmup": True}])
def test_supervised_and_warm_up_steps_are_not_comparable(fields: dict[str, Any]) -> None:
    """A baseline holds neither supervised steps nor the first ones after a start."""
    (step,) = job_steps([record(0, **fields), *(record(rank, **fields) for rank in (1, 2, 3))])
    assert not step.comparable


def test_reward_is_the_mean_and_absent_when_nobody_has_one() -> None:
    """A step without a rollout has no reward; it is not 0."""
    (without,) = job_steps(record(rank) for rank in range(4))
    (with_it,) = job_steps(record(rank, reward=rank / 4) for rank in range(4))
    assert without.reward is None
    assert with_it.reward == pytest.approx(0.375)


def test_durations_are_seconds_in_order() -> None:
    """The array has one entry a job step."""
    steps = job_steps(record(rank, step=s) for s in (1, 2) for rank in range(4))
    assert durations(steps).tolist() == [0.100000003, 0.100000003]
    assert durations([]).shape == (0,)
