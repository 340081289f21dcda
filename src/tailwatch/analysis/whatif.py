"""What a step of a trace would take if parts of the job were like the rest of it.

Contract: the ideal step gives every compute operation the mean and every transfer the median of its
kind. `Excess` splits what a step takes beyond that: one kind of variation after the other is
averaged away and the step played again, so the shares add up to 1 by construction. `without`
idealises some ranks alone, as published (M_W, M_S); such shares can overlap and exceed 1.

Cost: one replay for each number.
"""

from __future__ import annotations

import itertools

import msgspec
import numpy as np

from tailwatch.analysis.pipeline import COLLECTIVES, Pipeline
from tailwatch.analysis.trace import Op, Seconds, Trace

Durations = dict[Op, Seconds]


class Excess(msgspec.Struct, frozen=True):
    """Where the excess over the ideal step comes from, as shares of it, in the order of removal.

    variation: operations of one rank differ among each other; ranks: ranks of one stage differ;
    stages: stages differ; transfers: transfers differ.
    """

    variation: float
    ranks: float
    stages: float
    transfers: float


class WhatIf:
    """Replays of one trace. `step_s` is played as recorded, `ideal_s` idealised; seconds, means."""

    def __init__(self, trace: Trace, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._as_recorded = pipeline.durations
        self._shape = (len(trace.steps), trace.dp_size)
        self._ideal = self._levelled(ranks=True, stages=True, transfers=True)
        self.step_s = self.replay(self._as_recorded)
        self.ideal_s = self.replay(self._ideal)

    @property
    def slowdown(self) -> float:
        """Return S: the step over the ideal step."""
        return self.step_s / self.ideal_s

    def replay(self, durations: Durations) -> float:
        """Return the mean time of a step, in seconds."""
        return float(self._pipeline.simulate(durations).mean())

    def excess(self) -> Excess:
        """Return the split of the excess."""
        levels = [
            self.step_s,
            self.replay(self._levelled()),
            self.replay(self._levelled(ranks=True)),
            self.replay(self._levelled(ranks=True, stages=True)),
            self.ideal_s,
        ]
        return Excess(*[self._share(a, b) for a, b in itertools.pairwise(levels)])

    def without(self, cells: list[tuple[int, int]]) -> float:
        """Return the step time in seconds with the ranks (dp rank, stage) in `cells` ideal."""
        durations = dict(self._as_recorded)
        by_stage: dict[int, list[int]] = {}
        for dp_rank, stage in cells:
            by_stage.setdefault(stage, []).append(dp_rank)
        for op, recorded in self._as_recorded.items():
            if op.stage in by_stage:
                changed = recorded.copy()
                changed[:, by_stage[op.stage]] = self._ideal[op][:, by_stage[op.stage]]
                durations[op] = changed
        return self.replay(durations)

    def with_durations(self, replaced: Durations) -> float:
        """Return the step time in seconds with some operations replaced."""
        return self.replay({**self._as_recorded, **replaced})

    def share(self, step_s: float) -> float:
        """Return which share of the excess is gone in a step of `step_s` seconds; 0 without any."""
        return self._share(self.step_s, step_s)

    def _share(self, before: float, after: float) -> float:
        total = self.step_s - self.ideal_s
        return (before - after) / total if total > 0 else 0.0

    def _levelled(
        self, *, ranks: bool = False, stages: bool = False, transfers: bool = False
    ) -> Durations:
        """Return durations without variation of a rank's operations, and as asked of ranks, ..."""
        groups: dict[tuple[str, int], list[Op]] = {}
        for op in self._as_recorded:
            moves = op.kind in COLLECTIVES
            if not moves or transfers:
                groups.setdefault((op.kind, 0 if stages or moves else op.stage), []).append(op)
        durations = dict(self._as_recorded)
        for (kind, _), members in groups.items():
            recorded = np.stack([self._as_recorded[op] for op in members])
            level: Seconds | np.float64
            if kind in COLLECTIVES:
                level = np.median(recorded)
            elif ranks:
                level = recorded.mean()
            else:
                level = recorded.mean(axis=(0, 1))
            for op in members:
                durations[op] = np.broadcast_to(level, self._shape)
        return durations
