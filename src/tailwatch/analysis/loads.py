"""Ranks that are slow because of what they are given: causes `expert_load`, `sequence_length`.

Contract: like all rules, blind to the others. Time that follows tokens is load, and load is moved,
not repaired: no hardware action follows from these verdicts.

Cost: see `tailwatch.analysis.series`.
"""

from __future__ import annotations

import numpy as np

from tailwatch.analysis.candidate import (
    MINOR,
    PEER_SHARE,
    SMALL_SHARE,
    Candidate,
    Steps,
    by_kind,
    candidate_of,
    inside,
    occurring,
    with_untimed,
    worker_of,
)
from tailwatch.analysis.ownwork import lateness_of, peer_median
from tailwatch.analysis.series import Shift, shifts
from tailwatch.analysis.steptable import Values

LOAD_RATIO = 1.1
FOLLOWS = 0.6


def expert_load(steps: Steps) -> Candidate | None:
    """Ranks whose experts get more tokens than those of others: slow by load, not by hardware."""
    for work in steps.work:
        if work.name != "experts":
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = steps.table.expert_tokens / np.nanmean(
                steps.table.expert_tokens, axis=1, keepdims=True
            )
        load = occurring(work.seconds) * 0 + work.load
        lighter = load - by_kind(steps, load)
        found = [
            shift
            for shift in (
                shifts(lighter, SMALL_SHARE * steps.usual, period=steps.period)
                or shifts(load, PEER_SHARE * steps.usual, period=steps.period)
            )
            if np.nanmedian(ratio[shift.first : shift.last + 1, shift.column]) > LOAD_RATIO
        ]
        if not found:
            return None
        costs = [inside(np.nan_to_num(load[:, s.column]), s) for s in found]
        most = max(float(cost.sum()) for cost in costs)
        found = [s for s, c in zip(found, costs, strict=True) if c.sum() >= MINOR * most]
        cost = np.max(costs, axis=0)
        accused = [
            worker_of(
                steps.table,
                s.column,
                "ep_experts",
                float(np.nanmedian(ratio[s.first : s.last + 1, s.column])),
            )
            for s in found
        ]
        who = ", ".join(f"rank {w.rank} ({w.ratio:.2f} times the mean)" for w in accused)
        return candidate_of(
            "expert_load",
            accused,
            found,
            cost,
            f"experts get unequal loads: {who}; time a token is like that of the others",
        )
    return None


def sequence_length(steps: Steps) -> Candidate | None:
    """Steps as long as the rank with the most tokens makes them, whichever rank that is."""
    late = lateness_of(steps.table)
    if late is None:
        return None
    late = np.nan_to_num(late)
    rows = np.arange(len(late))
    best: tuple[float, Values, Shift] | None = None
    for tokens in (steps.table.tokens, steps.table.squares):
        more = np.nan_to_num(tokens - peer_median(tokens))
        heaviest = more.argmax(axis=1)
        behind = np.maximum(late[rows, heaviest], 0.0)
        same = heaviest == late.argmax(axis=1)
        floor = SMALL_SHARE * steps.usual
        for shift in shifts(behind[:, None], floor, period=steps.period, extra=same[:, None]):
            part = slice(shift.first, shift.last + 1)
            x = (more - more.mean(axis=0))[part].ravel()
            y = (late - late.mean(axis=0))[part].ravel()
            scale = float(np.sqrt((x @ x) * (y @ y)))
            # One rank that always has the most, and is always late, may be slow for other reasons.
            if scale == 0 or float(x @ y) / scale < FOLLOWS:
                continue
            cost = with_untimed(steps, inside(behind, shift), shift)
            if best is None or cost.sum() > best[0]:
                best = (float(cost.sum()), cost, shift)
    if best is None:
        return None
    _, cost, shift = best
    return candidate_of(
        "sequence_length",
        [],
        [shift],
        cost,
        f"the rank with the most tokens is the late one in {shift.hits} of {shift.steps} steps, "
        "whichever rank it is: unequal batches",
    )
