"""Job steps, put together from the records of ranks."""

from __future__ import annotations

import random
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    late = lateness(np.array([0.051, 0.049, 0.001, 0.050]))
    assert late[2] == pytest.approx(0.049)
    assert np.flatnonzero(late > 0.01).tolist() == [2]
    assert late.min() == 0.0


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=40))
def test_lateness_is_that_of_the_plain_formula(waits: list[float]) -> None:
    """For every number of ranks: the median of the others' waits minus the own one, at least 0."""
    expected = []
    for rank, own in enumerate(waits):
        others = waits[:rank] + waits[rank + 1 :]
        expected.append(max(0.0, median(others) - own) if others else 0.0)
    assert lateness(np.array(waits)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("group", ["ep", "dp"])
def test_a_rank_may_be_late_in_any_group(group: str) -> None:
    """Lateness shows in whichever group the others wait, and waits of all groups are added."""
    other = {"ep": "dp", "dp": "ep"}[group]
    records = [
        record(rank, waits_ns={group: 1_000_000 if rank == 2 else 51_000_000, other: 2_000_000})
        for rank in range(4)
    ]
    (step,) = job_steps(records)
    assert step.late_s == pytest.approx({0: 0.0, 1: 0.0, 2: 0.05, 3: 0.0})
    assert step.wait_s == pytest.approx({0: 0.053, 1: 0.053, 2: 0.003, 3: 0.053})


def test_one_delay_is_counted_once_and_waiting_elsewhere_takes_none_of_it_back() -> None:
    """Late at the first exchange is late once, also for a rank that waits for another at the next.

    Rank 2 comes 50 ms late to the first exchange, rank 0 then 40 ms late to the second.
    """
    ep = (50, 50, 0, 50)
    dp = (0, 40, 40, 40)
    records = [
        record(rank, waits_ns={"ep": ep[rank] * 1_000_000, "dp": dp[rank] * 1_000_000})
        for rank in range(4)
    ]
    (step,) = job_steps(records)
    assert step.late_s == pytest.approx({0: 0.04, 1: 0.0, 2: 0.05, 3: 0.0})


def test_a_group_that_all_others_hold_up_takes_no_lateness_back() -> None:
    """A rank that was late, and then waits as long for all others, was late all the same."""
    records = [
        record(rank, waits_ns=dict(zip(("ep", "dp"), waits, strict=True)))
        for rank, waits in enumerate([(50_000_000, 0)] * 2 + [(0, 50_000_000), (50_000_000, 0)])
    ]
    (step,) = job_steps(records)
    assert step.wait_s == pytest.approx(dict.fromkeys(range(4), 0.05))
    assert step.late_s == pytest.approx({0: 0.0, 1: 0.0, 2: 0.05, 3: 0.0})


def test_a_rank_alone_is_never_late() -> None:
    """Without peers there is nobody to be late for."""
    assert lateness(np.array([0.5])).tolist() == [0.0]


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
