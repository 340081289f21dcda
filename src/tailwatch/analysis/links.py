"""Exchanges that take long after all have come: cause `link`.

Contract: `link` compares ranks with each other and names them; `network` finds exchanges that take
everybody longer than they did, and names nobody unless there are only two ranks.

Cost: see `tailwatch.analysis.series`.
"""

from __future__ import annotations

import numpy as np

from tailwatch.analysis.candidate import (
    MINOR,
    PEER_SHARE,
    Candidate,
    Steps,
    by_kind,
    candidate_of,
    inside,
    lasting,
    occurring,
    shifted,
    worker_of,
)
from tailwatch.analysis.ownwork import peer_median
from tailwatch.analysis.series import Shift, shifts
from tailwatch.analysis.steptable import Values


def link(steps: Steps) -> Candidate | None:
    """Ranks whose exchange of tokens takes long after all have come."""
    dispatch = occurring(steps.table.children["ep_dispatch"])
    peers = peer_median(dispatch)
    rows, peer_rows = steps.table.rows, peer_median(steps.table.rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(peer_rows > 0, np.maximum(rows / peer_rows, 1.0), 1.0)
    expected = peers * np.nan_to_num(scale, nan=1.0)
    found = shifted(steps, dispatch, expected)
    if not found:
        return None
    costs = [inside(np.nan_to_num(dispatch - expected)[:, s.column], s) for s in found]
    most = max(float(cost.sum()) for cost in costs)
    named = [(s, c) for s, c in zip(found, costs, strict=True) if c.sum() >= MINOR * most]
    accused = []
    for shift, _ in named:
        part = (slice(shift.first, shift.last + 1), shift.column)
        ratio = float(np.nansum(dispatch[part]) / np.nansum(expected[part]))
        accused.append(worker_of(steps.table, shift.column, "ep_dispatch", ratio))
    who = ", ".join(f"rank {w.rank} on {w.node} ({w.ratio:.2f} times)" for w in accused)
    return candidate_of(
        "link",
        accused,
        [shift for shift, _ in named],
        np.max([cost for _, cost in named], axis=0),
        f"group ep: tokens take longer to and from {who}, after all have come: the transfer",
    )


def network(steps: Steps) -> Candidate | None:
    """Exchanges that take everybody longer than they did: the last to come waits longer, too."""
    parts = {"ep": [steps.table.children["ep_dispatch"], steps.table.children["ep_counts"]]}
    if "dp" in steps.table.waits:
        parts["dp"] = [steps.table.waits["dp"]]
    best: tuple[float, str, Shift, Values] | None = None
    for group, members in parts.items():
        least = np.sum([np.nan_to_num(np.nanmin(part, axis=1)) for part in members], axis=0)
        over = least - by_kind(steps, least)
        found = shifts(over[:, None], PEER_SHARE * steps.usual, period=steps.period)
        for shift in lasting(steps, found, over):
            cost = inside(over, shift)
            if best is None or cost.sum() > best[0]:
                best = (float(cost.sum()), group, shift, cost)
    if best is None:
        return None
    _, group, shift, cost = best
    # Between two ranks there is only one link.
    ends = range(2) if steps.table.world_size == 2 else ()
    ratio = float(1 + cost.sum() / max(float(steps.usual[cost > 0].sum()), 1e-9))
    phase = "ep_dispatch" if group == "ep" else "grad_sync"
    return candidate_of(
        "link",
        [worker_of(steps.table, rank, phase, ratio) for rank in ends],
        [shift],
        cost,
        f"group {group}: exchanges take all ranks longer than they did, after all have come",
    )
