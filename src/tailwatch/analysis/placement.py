"""Where experts should lie so that all ranks get the same load, and what p99 would then be.

Contract: `balanced` gives every rank as many experts as it holds now and puts the heaviest expert
on the rank with the least load so far that has room (longest processing time first), the packing
step of DeepSeek's EPLB without its copies of experts: more copies need memory that only the owner
of the job can promise.

Source: deepseek-ai/EPLB, `balanced_packing`. Cost: experts x ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.diagnosis import Placement
from tailwatch.analysis.steptable import StepTable, Values
from tailwatch.statistics import quantile_bounds


def balanced(load: NDArray[np.float64], owners: NDArray[np.int64], ranks: int) -> list[list[int]]:
    """Return the experts of each rank; `load` and `owners` have the shape (experts,)."""
    room = np.bincount(owners[owners >= 0], minlength=ranks)
    total = np.zeros(ranks)
    placed: list[list[int]] = [[] for _ in range(ranks)]
    for expert in np.argsort(-load, kind="stable").tolist():
        if owners[expert] < 0:
            continue
        free = [rank for rank in range(ranks) if len(placed[rank]) < room[rank]]
        rank = min(free, key=lambda r: total[r])
        placed[rank].append(expert)
        total[rank] += load[expert]
    return [sorted(experts) for experts in placed]


def propose(table: StepTable, seconds: Values, first: int, last: int) -> Placement:
    """Return the placement for the loads of the steps `first` to `last`.

    Args:
        seconds: time in experts, shape (steps, ranks); what each rank's load costs follows from it.
    """
    part = slice(first, last + 1)
    loads = np.nan_to_num(table.experts[part])
    ranks = table.world_size
    placed = balanced(loads.mean(axis=0), table.owners, ranks)
    before = np.stack([loads[:, table.owners == rank].sum(axis=1) for rank in range(ranks)], axis=1)
    after = np.stack([loads[:, experts].sum(axis=1) for experts in placed], axis=1)
    a_token = float(np.nansum(seconds[part]) / max(float(before.sum()), 1.0))
    saved = a_token * (before.max(axis=1) - after.max(axis=1))
    took = table.step_seconds()[part]
    return Placement(
        ranks=placed,
        load_max_ratio=_ratio(before),
        proposed_load_max_ratio=_ratio(after),
        p99_s=quantile_bounds(took).estimate,
        proposed_p99_s=quantile_bounds(np.maximum(took - saved, 0.0)).estimate,
    )


def _ratio(load: Values) -> float:
    """Return the load of the busiest rank over the mean, all steps together."""
    total = load.sum(axis=0)
    return float(total.max() / total.mean()) if total.sum() > 0 else 1.0
