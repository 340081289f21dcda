"""What the ranks of a trace computed, side by side: who differs from whom, and how.

Contract: pure questions to one trace; `tracerules` draws the conclusions. Arrays have the shape
(steps, dp ranks, stages, operations), operations in the order of chunk and microbatch.

Cost: a few medians.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.persistence import Episode, episode
from tailwatch.analysis.trace import BACKWARD, FORWARD, Op, Seconds, Trace

PEER_RATIO = 1.1
STALL = 0.3
_LEAST_STEPS = 3
_LEAST_SHARE = 0.2


class Suspect(msgspec.Struct, frozen=True):
    """A rank slower than its stage peers: where, since when, and by how much."""

    dp_rank: int
    stage: int
    episode: Episode
    ratio: float


class Compute:
    """Forward and backward passes of a trace; stages with more of them are cut to the least."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.forward = self._tensor(FORWARD)
        self.backward = self._tensor(BACKWARD)
        self.paired = self.forward.shape == self.backward.shape

    def _ops(self, kind: str, stage: int) -> list[Op]:
        ops = [op for op in self._trace.duration if (op.kind, op.stage) == (kind, stage)]
        return sorted(ops, key=lambda op: self._trace.work[op])

    def _tensor(self, kind: str) -> Seconds:
        stages = [
            np.stack([self._trace.duration[op] for op in self._ops(kind, stage)], axis=-1)
            for stage in range(self._trace.stages)
        ]
        least = min(stage.shape[-1] for stage in stages)
        return np.stack([stage[..., :least] for stage in stages], axis=2)

    def own_seconds(self) -> Seconds:
        """Return what each rank computed in each step; shape (steps, dp ranks, stages)."""
        own: Seconds = self.forward.sum(axis=-1) + self.backward.sum(axis=-1)
        return own

    def suspects(self) -> list[Suspect]:
        """Return the ranks slower than their stage peers for a good part of the trace."""
        own = self.own_seconds()
        least = max(_LEAST_STEPS, math.ceil(_LEAST_SHARE * len(own)))
        found = []
        for stage in range(self._trace.stages):
            for dp_rank in range(self._trace.dp_size):
                peers = np.delete(own[:, :, stage], dp_rank, axis=1)
                if not peers.size:
                    continue
                ratio = own[:, dp_rank, stage] / np.maximum(np.median(peers, axis=1), 1e-12)
                stretch = episode(ratio > PEER_RATIO, least)
                if stretch is not None:
                    part = ratio[stretch.first : stretch.last + 1]
                    found.append(Suspect(dp_rank, stage, stretch, float(np.median(part))))
        return sorted(found, key=lambda suspect: -suspect.ratio)

    def correlation(self) -> float:
        """Return the correlation of forward and backward within a rank, median of the stages."""
        if not self.paired:
            return 0.0
        forward = self.forward - self.forward.mean(axis=(0, 3), keepdims=True)
        backward = self.backward - self.backward.mean(axis=(0, 3), keepdims=True)
        product = (forward * backward).sum(axis=(0, 1, 3))
        scale = np.sqrt((forward**2).sum(axis=(0, 1, 3)) * (backward**2).sum(axis=(0, 1, 3)))
        return float(np.median(product / np.maximum(scale, 1e-30)))

    def stretched(self) -> NDArray[np.bool_]:
        """Return which forward passes are stretched while their backward passes are not."""
        if not self.paired:
            return np.zeros_like(self.forward, dtype=bool)
        usual = np.median(self.forward, axis=(0, 3), keepdims=True)
        usual_back = np.median(self.backward, axis=(0, 3), keepdims=True)
        found: NDArray[np.bool_] = (self.forward > (1 + STALL) * usual) & (
            self.backward < (1 + STALL / 2) * usual_back
        )
        return found

    def usual_where(self, stretched: NDArray[np.bool_]) -> dict[Op, Seconds]:
        """Return forward passes with the usual time of their rank instead of stretched ones."""
        usual = np.median(self.forward, axis=(0, 3), keepdims=True)
        replaced = np.where(stretched, usual, self.forward)
        return {
            op: replaced[:, :, stage, at]
            for stage in range(self._trace.stages)
            for at, op in enumerate(self._ops(FORWARD, stage)[: replaced.shape[-1]])
        }
