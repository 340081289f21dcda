"""A possible cause of slow steps, and the steps in which it is looked for.

Contract: a candidate's `cost` is what the job's step would be shorter without it, step by step:
ranks run in lockstep, so it is the excess of the worst rank and not a sum over ranks. A shift is
looked for against the rank's own beginning (small ones) and against its peers (large ones, for a
cause that was there from the start).

Cost: see `tailwatch.analysis.series`.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.diagnosis import Verdict, Worker, lower_share
from tailwatch.analysis.ownwork import OwnWork
from tailwatch.analysis.series import Shift, known_median, shifts
from tailwatch.analysis.steptable import StepTable, Values

HISTORY = 40
SMALL_SHARE = 0.03
PEER_SHARE = 0.05
PEER_RATIO = 1.1
MINOR = 0.3
LASTING = 20
UNTIMED = 3.0


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A possible cause: who, from step index `first` to `last`, and seconds of each step."""

    verdict: Verdict
    workers: list[Worker]
    first: int
    last: int
    cost: Values
    confidence: float
    reason: str

    @property
    def total_s(self) -> float:
        """Seconds of the job that this cause costs."""
        return float(self.cost.sum())


class Steps(msgspec.Struct, frozen=True):
    """The table with what all rules need: own work, usual step time of each step's kind, history.

    `usual` are seconds, shape (steps,); `past` marks the steps that stand for "before".
    """

    table: StepTable
    work: list[OwnWork]
    usual: Values
    past: NDArray[np.bool_]

    @property
    def period(self) -> int:
        """Number of kinds of steps that take turns."""
        return len(np.unique(self.table.kind))


def usual_seconds(table: StepTable) -> tuple[Values, NDArray[np.bool_]]:
    """Return the usual time of each step (median of its kind in the past), and the past."""
    seconds = table.step_seconds()
    past = np.zeros(len(seconds), dtype=bool)
    usual = np.zeros(len(seconds))
    for kind in np.unique(table.kind):
        same = np.flatnonzero(table.kind == kind)
        early = same[: max(HISTORY // 2, min(len(same) // 5, 4 * HISTORY))]
        past[early] = True
        usual[same] = np.median(seconds[early])
    return usual, past


def shifted(steps: Steps, seconds: Values, reference: Values) -> list[Shift]:
    """Return shifts of `seconds` over `reference` (same shape), against the start or the peers."""
    over = seconds - reference
    floor = SMALL_SHARE * steps.usual
    base = by_kind(steps, over)
    found = {shift.column: shift for shift in shifts(over - base, floor, period=steps.period)}
    with np.errstate(invalid="ignore", divide="ignore"):
        clear = seconds > PEER_RATIO * reference
    for shift in shifts(over, PEER_SHARE * steps.usual, period=steps.period, extra=clear):
        known = found.get(shift.column)
        # What was there before the past ended began before it.
        if known is None or shift.hits > known.hits:
            found[shift.column] = shift
    return list(found.values())


def by_kind(steps: Steps, values: Values) -> Values:
    """Return the medians of the past for each kind of step, spread over the steps of that kind."""
    base = np.zeros_like(values)
    for kind in np.unique(steps.table.kind):
        same = steps.table.kind == kind
        early = values[same & steps.past]
        known = early[np.isfinite(early).any(axis=1)] if early.ndim > 1 else early
        if len(known):
            base[same] = np.nan_to_num(known_median(known))
    return base


def occurring(seconds: Values) -> Values:
    """Return the seconds with NaN in the steps in which no rank has any."""
    return np.where((np.nan_to_num(seconds) > 0).any(axis=1, keepdims=True), seconds, np.nan)


def inside(values: Values, shift: Shift) -> Values:
    """Return the positive values inside a stretch, 0 outside; shape (steps,)."""
    cost = np.zeros(len(values))
    part = slice(shift.first, shift.last + 1)
    cost[part] = np.maximum(values[part], 0.0)
    return cost


def with_untimed(steps: Steps, cost: Values, shift: Shift) -> Values:
    """Return a cost of dense compute with what the recorder could not see of it.

    The exchanges of a backward pass are not timed apart: what a rank is late there lies inside
    everybody's own work. So what the step takes longer than before counts, up to three times what
    is seen; where there is no "before", only that.
    """
    if steps.past[shift.first]:
        return cost
    over = inside(steps.table.step_seconds() - steps.usual, shift)
    return np.maximum(cost, np.minimum(over, UNTIMED * cost))


def worker_of(table: StepTable, rank: int, phase: str, ratio: float) -> Worker:
    """Return the accusation of a rank."""
    # Without pipeline stages every rank is a data parallel one.
    return Worker(
        rank=rank, dp_rank=rank, stage=0, node=table.nodes[rank], phase=phase, ratio=ratio
    )


def candidate_of(
    verdict: Verdict, accused: list[Worker], found: list[Shift], cost: Values, reason: str
) -> Candidate:
    """Return the candidate of some shifts; its confidence is that of the longest of them."""
    longest = max(found, key=lambda shift: shift.hits)
    return Candidate(
        verdict=verdict,
        workers=accused,
        first=min(shift.first for shift in found),
        last=max(shift.last for shift in found),
        cost=cost,
        confidence=lower_share(longest.hits, longest.steps),
        reason=reason,
    )


def lasting(steps: Steps, found: list[Shift], over: Values) -> list[Shift]:
    """Return the shifts of a series `over` all ranks that are more than a gust.

    Nothing but the past says that everybody is slow, so a passing load on the machines does not
    count: a quarter of the steps, or `LASTING` of them until the end, and in the middle above all
    but a twentieth of the past.
    """
    there = len(steps.usual)
    seen = float(np.quantile(over[steps.past], 0.95))
    return [
        shift
        for shift in found
        if not steps.past[: shift.first + 1].all()
        and float(np.median(over[shift.first : shift.last + 1])) > seen
        and (
            shift.hits >= max(LASTING, there // 4)
            or (shift.hits >= LASTING and shift.last >= there - LASTING // 2)
        )
    ]
