"""Where ranks stood idle and because of what, and where a single step stalled.

Contract: a rank's idle time in a step is what it waited longer than the rank that waited least; its
cause is the phase in which the rank that was waited for exceeded the others most. Waiting for
rollouts that other processes make is its own phase and counts as `rollout`. A micro-stall is an
occurrence of a phase that takes more than 3 times its running median and more than 5 ms.

Cost: a few array operations a phase, one running median each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.ownwork import OwnWork
from tailwatch.analysis.series import running_median
from tailwatch.analysis.steptable import StepTable, Values

STALL_RATIO = 3.0
LEAST_STALL_S = 0.005
_WINDOW = 15

_CAUSES = {
    "rollout_generate": "rollout",
    "rollout_wait": "rollout",
    "reward": "reward",
    "exchange": "weight_sync",
    "checkpoint": "checkpoint",
    "eval": "eval",
    "data": "data",
    "gc": "gc",
}


def idle_seconds(table: StepTable, work: list[OwnWork]) -> dict[str, dict[str, float]]:
    """Return seconds by side (role of the ranks) and cause; compute of a late rank is `compute`."""
    causes: dict[str, Values] = {entry.name: entry.seconds for entry in work}
    causes |= {name: table.phases[name] for name in ("checkpoint", "eval", "data", "gc")}
    if not table.waits:
        return {}
    waited = np.nan_to_num(np.sum(list(table.waits.values()), axis=0))
    waited += np.nan_to_num(table.children["ep_combine"])
    idle = (waited - waited.min(axis=1, keepdims=True)).sum(axis=1)
    latest = waited.argmin(axis=1)
    names = list(causes)
    excess = np.stack([_beyond_median(np.nan_to_num(causes[name]), latest) for name in names])
    main = excess.argmax(axis=0)
    total: dict[str, float] = {}
    for at, name in enumerate(names):
        seconds = float(idle[main == at].sum())
        if seconds > 0:
            cause = _CAUSES.get(name, "compute")
            total[cause] = total.get(cause, 0.0) + seconds
    generated = float(np.nansum(table.phases["rollout_wait"]))
    if generated > 0:
        total["rollout"] = total.get("rollout", 0.0) + generated
    side = "rollout" if table.role == "rollout" else "trainer"
    return {side: dict(sorted(total.items()))} if total else {}


def _beyond_median(seconds: Values, rank: NDArray[np.int64]) -> Values:
    """Return what each step's `rank` needed beyond the ranks' median; shape (steps,)."""
    excess: Values = seconds[np.arange(len(seconds)), rank] - np.median(seconds, axis=1)
    return excess


def micro_stalls(table: StepTable) -> dict[str, int]:
    """Return the number of stalls of any rank by phase; children count instead of their phase."""
    found = {}
    parts = {name: v for name, v in table.phases.items() if name != "forward_backward"}
    for name, values in (parts | table.children).items():
        seconds = np.nan_to_num(values)
        count = 0
        for kind in np.unique(table.kind):
            same = seconds[table.kind == kind]
            usual = running_median(same, _WINDOW)
            happens = np.median(same) > 0
            stalls = (same > STALL_RATIO * usual) & (same - usual > LEAST_STALL_S)
            count += int(stalls.sum()) if happens else 0
        if count:
            found[name] = count
    return found
