"""Ranks that are slow themselves: cause `worker`.

Contract: accused is who needs longer for its own work than peers with as much of it *and* is waited
for. Ranks on the node of an accused one are looked at more closely, because what slows a machine
slows all of its ranks.

Cost: see `tailwatch.analysis.series`; one search for each class of own work.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tailwatch.analysis.candidate import (
    MINOR,
    SMALL_SHARE,
    Candidate,
    Steps,
    by_kind,
    candidate_of,
    inside,
    occurring,
    shifted,
    with_untimed,
    worker_of,
)
from tailwatch.analysis.ownwork import lateness_of
from tailwatch.analysis.series import Shift
from tailwatch.analysis.steptable import Values

LEAST_RATIO = 1.05


def workers(steps: Steps) -> Candidate | None:
    """Ranks that are slower than peers with as much work, and are waited for."""
    late = lateness_of(steps.table)
    total_seconds = np.sum([np.nan_to_num(work.seconds) for work in steps.work], axis=0)
    total_expected = np.sum([np.nan_to_num(work.expected) for work in steps.work], axis=0)
    missing = ~np.isfinite(steps.table.duration)
    total_seconds[missing] = np.nan
    series: list[tuple[str, Values, Values]] = [
        (work.name, occurring(work.seconds), work.expected) for work in steps.work
    ]
    if len(steps.work) > 1:
        series.append(("all", total_seconds, total_expected))
    best: dict[int, _Slow] = {}
    for name, seconds, expected in series:
        over = seconds - expected
        base = by_kind(steps, over)
        for shift in shifted(steps, seconds, expected):
            part = slice(shift.first, shift.last + 1)
            if late is not None and not np.nanmedian(late[part, shift.column]) > 0:
                continue
            # From the first step on there is no "before" to subtract.
            before = 0.0 if steps.past[shift.first] else 1.0
            slow = _slow(name, seconds, expected + before * base, shift)
            known = best.get(shift.column)
            if slow.ratio >= LEAST_RATIO and (known is None or slow.total_s > known.total_s):
                best[shift.column] = slow
    if not best:
        return None
    # A rank that only looks slow beside a much slower one is not named.
    most = max(best.values(), key=lambda slow: slow.total_s)
    named = {r: slow for r, slow in best.items() if slow.total_s >= MINOR * most.total_s}
    expected = total_expected + by_kind(steps, total_seconds - total_expected)
    named |= _neighbours(steps, named, total_seconds, expected)
    accused = [
        worker_of(steps.table, rank, _phase(steps, slow), slow.ratio)
        for rank, slow in sorted(named.items())
    ]
    who = ", ".join(f"rank {w.rank} on {w.node} ({w.phase}, {w.ratio:.2f} times)" for w in accused)
    return candidate_of(
        "worker",
        accused,
        [slow.shift for slow in named.values()],
        np.max([_whole_cost(steps, slow) for slow in named.values()], axis=0),
        f"{who}: longer than peers with as much work, and the others wait for it",
    )


class _Slow(msgspec.Struct, frozen=True):
    """A rank that is slow: in what, when, seconds of each step, and times what is expected."""

    name: str
    shift: Shift
    cost: Values
    ratio: float

    @property
    def total_s(self) -> float:
        return float(self.cost.sum())


def _whole_cost(steps: Steps, slow: _Slow) -> Values:
    if _phase(steps, slow) != "dense":
        return slow.cost
    return with_untimed(steps, slow.cost, slow.shift)


def _slow(name: str, seconds: Values, expected: Values, shift: Shift) -> _Slow:
    rank, part = shift.column, slice(shift.first, shift.last + 1)
    cost = inside(np.nan_to_num(seconds[:, rank] - expected[:, rank]), shift)
    known = np.isfinite(seconds[part, rank]) & np.isfinite(expected[part, rank])
    should = float(expected[part, rank][known].sum())
    ratio = float(seconds[part, rank][known].sum()) / should if should > 0 else np.inf
    return _Slow(name, shift, cost, ratio)


def _neighbours(
    steps: Steps, named: dict[int, _Slow], seconds: Values, expected: Values
) -> dict[int, _Slow]:
    """Return ranks on the node of a slow one that are slow with it, if less clearly."""
    found: dict[int, _Slow] = {}
    for slow in named.values():
        part = slice(slow.shift.first, slow.shift.last + 1)
        node = steps.table.nodes[slow.shift.column]
        for rank, where in enumerate(steps.table.nodes):
            if where != node or rank in named:
                continue
            beside = _slow(
                "all", seconds, expected, msgspec.structs.replace(slow.shift, column=rank)
            )
            with_it = np.nanmedian(seconds[part, rank] - expected[part, rank])
            enough = with_it > max(
                SMALL_SHARE * float(np.median(steps.usual[part])),
                MINOR * float(np.median(slow.cost[part])),
            )
            if enough and beside.ratio >= LEAST_RATIO:
                found[rank] = beside
    return found


def _phase(steps: Steps, slow: _Slow) -> str:
    """Return the class of own work that makes up most of a rank's excess."""
    if slow.name != "all":
        return slow.name
    rank, part = slow.shift.column, slice(slow.shift.first, slow.shift.last + 1)
    excess = {work.name: float(np.nansum(work.excess[part, rank])) for work in steps.work}
    return max(excess, key=lambda key: excess[key])
