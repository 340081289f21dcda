"""Whether transfers of one group are slower while those of another group are in flight.

Contract: transfers of one kind on one stage are compared with each other, those that overlap a
transfer of another group with those that do not, on the same rank. A difference is told only when
ranks of values (Mann-Whitney) leave little doubt and both sides have enough of them. Own transfer
time is taken, without waiting, so that a late peer is no interference.

Cost: one sort for each kind of a stage, some 50 ms for 100,000 operations.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.changes import rank_test
from tailwatch.analysis.pipeline import Pipeline
from tailwatch.analysis.trace import P2P, Op, Trace

LEAST = 20
RATIO = 1.2
P_VALUE = 1e-4

_GROUPS = {
    **dict.fromkeys(P2P, "pp"),
    "params-all-gather": "dp",
    "grads-reduce-scatter": "dp",
    "separate-grads-all-reduce": "dp",
    "embedding-grads-all-reduce": "embedding",
}


class Interference(msgspec.Struct, frozen=True, kw_only=True):
    """Transfers of `kind` take `ratio` times as long while `other` (a group) is in flight."""

    kind: str
    stage: int
    other: str
    ratio: float
    overlapping: int


def interference(trace: Trace, pipeline: Pipeline) -> list[Interference]:
    """Return what is found in a trace, the strongest first."""
    found = []
    for stage in range(trace.stages):
        moving = [op for op in trace.start if op.stage == stage and op.kind in _GROUPS]
        for kind in sorted({op.kind for op in moving}):
            mine = [op for op in moving if op.kind == kind]
            for group in sorted({_GROUPS[op.kind] for op in moving} - {_GROUPS[kind]}):
                others = [op for op in moving if _GROUPS[op.kind] == group]
                beside = _beside(trace, pipeline, mine, others)
                took = np.stack([pipeline.durations[op] for op in mine])
                slow, free = took[beside], took[~beside]
                if min(len(slow), len(free)) < LEAST or not np.median(free) > 0:
                    continue
                ratio = float(np.median(slow) / np.median(free))
                if ratio >= RATIO and rank_test(slow, free) < P_VALUE:
                    found.append(
                        Interference(
                            kind=kind, stage=stage, other=group, ratio=ratio, overlapping=len(slow)
                        )
                    )
    return sorted(found, key=lambda entry: -entry.ratio)


def _beside(
    trace: Trace, pipeline: Pipeline, mine: list[Op], others: list[Op]
) -> NDArray[np.bool_]:
    """Return which of `mine` transfer while one of `others` does; shape (mine, steps, dp ranks)."""

    def spans(ops: list[Op]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        ends = np.stack([trace.start[op] + trace.duration[op] for op in ops])
        return ends - np.stack([pipeline.durations[op] for op in ops]), ends

    began, ended = spans(mine)
    beside = np.zeros(began.shape, dtype=bool)
    for other_began, other_ended in zip(*spans(others), strict=True):
        beside |= (began < other_ended) & (other_began < ended)
    return beside
