"""Steps of a job, put together from the records of its ranks.

Contract: one `JobStep` for each (attempt, step) that all ranks of its world finished; a step that
lacks a rank's record is no job step, so a killed step never counts as a fast or a slow one. One
sample of a job's step time is one `JobStep`, never rank x step. A record that was logged twice
counts once.

Cost: about 20 us a step of 4 ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, median

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.records import Record, Stage, StepRecord

WAIT_GROUP = "ep"


class JobStep(msgspec.Struct, kw_only=True, frozen=True):
    """One step of the whole job.

    `duration_s` is the longest of the ranks' step times, `start_ns` the first start and `end_ns`
    the last end, both wall time. `wait_s` is what each rank waited in the counts exchanges of the
    expert-parallel group; `late_s` how much less that is than the median of the other ranks, never
    below 0: a rank's own lateness, for which no clocks have to agree. Ranks without that wait have
    no entry. `loss` is that of the lowest rank (it is a global loss), `reward` the ranks' mean.
    """

    attempt: int
    step: int
    iteration: int
    start_ns: int
    end_ns: int
    duration_s: float
    configuration: str
    stage: Stage
    warmup: bool
    world_size: int
    loss: float | None
    reward: float | None
    late_s: dict[int, float]
    wait_s: dict[int, float]

    @property
    def comparable(self) -> bool:
        """Whether the step may stand in a baseline or be compared with one."""
        return self.stage == "grpo" and not self.warmup


def lateness(waits: dict[int, float]) -> dict[int, float]:
    """Return each rank's own lateness from the waits of all ranks, in the same unit."""
    late = {}
    for rank, own in waits.items():
        others = [wait for other, wait in waits.items() if other != rank]
        late[rank] = max(0.0, median(others) - own) if others else 0.0
    return late


def job_steps(records: Iterable[Record]) -> list[JobStep]:
    """Return the job steps in the records, in order of attempt and step; events are passed over."""
    ranks: dict[tuple[int, int], dict[int, StepRecord]] = {}
    for record in records:
        if isinstance(record, StepRecord):
            ranks.setdefault((record.attempt, record.step), {}).setdefault(record.rank, record)
    return [
        _job_step([found[rank] for rank in sorted(found)])
        for _, found in sorted(ranks.items())
        if len(found) == next(iter(found.values())).world_size
    ]


def durations(steps: Iterable[JobStep]) -> NDArray[np.float64]:
    """Return the step times in seconds; shape (n,), in the order given."""
    return np.array([step.duration_s for step in steps], dtype=np.float64)


def _job_step(records: list[StepRecord]) -> JobStep:
    first = records[0]
    waits = {r.rank: r.waits_ns[WAIT_GROUP] / 1e9 for r in records if WAIT_GROUP in r.waits_ns}
    rewards = [r.reward for r in records if r.reward is not None]
    return JobStep(
        attempt=first.attempt,
        step=first.step,
        iteration=first.iteration,
        start_ns=min(r.start_ns for r in records),
        end_ns=max(r.start_ns + r.duration_ns for r in records),
        duration_s=max(r.duration_ns for r in records) / 1e9,
        configuration=first.configuration,
        stage=first.stage,
        warmup=any(r.warmup for r in records),
        world_size=first.world_size,
        loss=first.loss,
        reward=fmean(rewards) if rewards else None,
        late_s=lateness(waits),
        wait_s=waits,
    )
