"""How long the ranks wait for the late one: the footprint of a slow rank in everybody else.

Contract: a slow rank is seen in the waits of its peers, never in its own record, which it writes
itself. Seconds throughout.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from tailwatch.jobsteps import JobStep
from tailwatch.records import StepRecord


def others_wait(steps: Iterable[JobStep], rank: int) -> float | None:
    """Return the median over steps of the median wait of all ranks but one."""
    per_step = []
    for step in steps:
        others = [wait for other, wait in step.wait_s.items() if other != rank]
        if others:
            per_step.append(median(others))
    return median(per_step) if per_step else None


def own_wait(steps: Iterable[JobStep], rank: int) -> float | None:
    """Return the median over steps of one rank's wait."""
    waits = [step.wait_s[rank] for step in steps if rank in step.wait_s]
    return median(waits) if waits else None


def seconds_a_step(records: Iterable[StepRecord], rank: int) -> float | None:
    """Return the mean time from one step to the next, by the step starts of all ranks but one."""
    starts: dict[int, list[int]] = {}
    for record in records:
        if record.rank != rank:
            starts.setdefault(record.rank, []).append(record.start_ns)
    periods = [(max(s) - min(s)) / (len(s) - 1) / 1e9 for s in starts.values() if len(s) > 1]
    return median(periods) if periods else None
