"""Whether each detector could see anything at all: silence of a blind one is no good news.

Contract: one state for each detector and run, with a sentence. `ok`: it has what it needs;
`no_data`: its input is not in the records; `not_a_number`: its input is NaN or constant zero where
it cannot be; `dead_input`: the newest record is older than `STALE_STEPS` usual steps (or
`LEAST_STALE_S`); `waiting`: not enough steps yet.

Cost: a few passes over the table.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from tailwatch.analysis.runrules import MIN_STEPS
from tailwatch.analysis.steptable import StepTable, Values
from tailwatch.statistics import quantile_bounds

State = Literal["ok", "waiting", "no_data", "not_a_number", "dead_input"]

STALE_STEPS = 10
LEAST_STALE_S = 30.0


class DetectorState(msgspec.Struct, frozen=True, kw_only=True):
    """What a detector can say about itself."""

    detector: str
    state: State
    reason: str = ""


def check_detectors(table: StepTable | None, since_newest_s: float) -> list[DetectorState]:
    """Return the state of each detector.

    Args:
        table: the newest steps; None when there are none.
        since_newest_s: how long ago the newest record came, by the clock of who asks.
    """
    if table is None:
        return [DetectorState(detector=name, state="no_data", reason="no steps") for name in NEEDS]
    usual = float(np.nanmedian(table.duration))
    stale = max(STALE_STEPS * usual, LEAST_STALE_S)
    found = []
    for name in NEEDS:
        state, reason = _state(name, table)
        if state != "no_data" and since_newest_s > stale:
            state, reason = "dead_input", f"newest record {since_newest_s:.0f} s ago"
        found.append(DetectorState(detector=name, state=state, reason=reason))
    return found


def _inputs(name: str, table: StepTable) -> list[Values]:
    return {
        "worker": [table.phases["forward_backward"]],
        "lateness": list(table.waits.values()),
        "expert_load": [table.expert_tokens],
        "link": [table.children["ep_dispatch"]],
        "sequence_length": [table.tokens],
        "p99": [table.duration],
    }[name]


NEEDS = ("worker", "lateness", "expert_load", "link", "sequence_length", "p99")
"""The detectors that look at runs; pauses name themselves and need nothing but a step."""


def _state(name: str, table: StepTable) -> tuple[State, str]:
    inputs = _inputs(name, table)
    if not inputs or not any(np.isfinite(values).any() for values in inputs):
        return "no_data", "no such values in the records"
    if not any((np.nan_to_num(values) > 0).any() for values in inputs):
        return "no_data", "all values are 0: nobody measures them"
    blind = [rank for rank in range(table.world_size) if not _sees(inputs, rank)]
    if blind:
        return "not_a_number", f"no value of rank {blind[0]} ({len(blind)} of {table.world_size})"
    if name != "p99" and table.world_size < 2:
        return "no_data", "one rank: no peers"
    if len(table.step) < MIN_STEPS:
        return "waiting", f"{len(table.step)} of {MIN_STEPS} steps"
    if name == "p99" and quantile_bounds(table.step_seconds()).upper is None:
        return "waiting", "effective sample size below that of an upper bound"
    return "ok", ""


def _sees(inputs: list[Values], rank: int) -> bool:
    return any(np.isfinite(values[:, rank]).any() for values in inputs)
