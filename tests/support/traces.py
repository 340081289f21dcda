"""Operation traces of a made-up pipeline job, in the public format, with a cause put in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Values = NDArray[np.float64]


class PipelineJob:
    """A 1F1B job; change `forward`, `backward` (steps, dp, stages, microbatches) before `write`."""

    def __init__(
        self, *, dp: int = 4, stages: int = 2, microbatches: int = 8, steps: int = 24, seed: int = 1
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape = (steps, dp, stages, microbatches)
        self.forward = 0.1 * self.rng.normal(1.0, 0.01, self.shape)
        self.backward = 0.2 * self.rng.normal(1.0, 0.01, self.shape)
        self.p2p = np.full((steps, dp, stages), 0.001)
        self.data = np.full((steps, dp), 0.001)
        self.tp = 2

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the trace as columns."""
        return _Player(self).columns()

    def write(self, path: Path, columns: dict[str, NDArray[Any]] | None = None) -> Path:
        """Write the trace as parquet."""
        pq.write_table(pa.table(self.columns() if columns is None else columns), path)
        return path


class _Player:
    def __init__(self, job: PipelineJob) -> None:
        self.job = job
        self.steps, self.dp, self.stages, self.microbatches = job.shape
        self.rows: list[tuple[str, int, int, int, int, Values, Values]] = []
        self.done: dict[tuple[str, int, int], Values] = {}
        self.free: dict[int, Values] = {}
        self.posted: dict[tuple[str, int], Values] = {}

    def emit(
        self, kind: str, stage: int, at: int, start: Values, end: Values, work: int = -1
    ) -> None:
        chunk = stage if work >= 0 else -1
        self.rows.append((kind, stage, at, chunk, work, start, end))

    def order(self, stage: int) -> list[tuple[str, int]]:
        warm = min(self.microbatches, self.stages - stage - 1)
        order = [("F", i) for i in range(warm)]
        for i in range(self.microbatches - warm):
            order += [("F", warm + i), ("B", i)]
        return order + [("B", i) for i in range(self.microbatches - warm, self.microbatches)]

    def play(self) -> None:
        job = self.job
        nothing = np.zeros((self.steps, self.dp))
        waiting = {stage: self.order(stage) for stage in range(self.stages)}
        for stage in range(self.stages):
            self.emit("params-all-gather", stage, 0, nothing, nothing + 0.01)
            self.free[stage] = nothing + 0.01 + (job.data if stage == 0 else 0.0)
        while any(waiting.values()):
            for stage, left in waiting.items():
                while left and self.compute(stage, *left[0]):
                    left.pop(0)
        for stage in range(self.stages):
            free = self.free[stage]
            self.emit("gc", stage, 0, free, free)
            self.emit("layernorm-grads-all-reduce", stage, 0, free, free + 0.001)
            self.free[stage] = free + 0.001
        both = np.maximum(self.free[0], self.free[self.stages - 1])
        for stage in {0, self.stages - 1}:
            self.emit("embedding-grads-all-reduce", stage, 0, self.free[stage], both + 0.01)
            self.free[stage] = both + 0.01
        for stage in range(self.stages):
            came = np.broadcast_to(self.free[stage].max(axis=1, keepdims=True), nothing.shape)
            self.emit("grads-reduce-scatter", stage, 0, self.free[stage], came + 0.03)
            self.free[stage] = came + 0.03
        last = np.max(list(self.free.values()), axis=0).max(axis=1, keepdims=True)
        for stage in range(self.stages):
            end = np.broadcast_to(last + 0.01, nothing.shape)
            self.emit("optimizer-clip-main-grad", stage, 0, self.free[stage], end)
            self.emit("optimizer", stage, 0, end, end + 0.02)

    def compute(self, stage: int, kind: str, i: int) -> bool:
        forward = kind == "F"
        way = "forward" if forward else "backward"
        source = stage - 1 if forward else stage + 1
        start = self.free[stage]
        if 0 <= source < self.stages:
            sent = self.done.get((kind, source, i))
            if sent is None:
                return False
            # A receive is posted when the last operation of its kind has ended.
            posted = self.posted.get((kind, stage), np.zeros_like(sent))
            came = np.maximum(sent, posted) + self.job.p2p[:, :, stage]
            self.emit(f"{way}-send", source, i, sent, came)
            self.emit(f"{way}-recv", stage, i, posted, came)
            start = np.maximum(start, came)
        took = (self.job.forward if forward else self.job.backward)[:, :, stage, i]
        self.emit(f"{way}-compute", stage, i, start, start + took, work=i)
        self.done[kind, stage, i] = self.free[stage] = start + took
        self.posted[kind, stage] = start + took
        return True

    def columns(self) -> dict[str, NDArray[Any]]:
        self.play()
        parts: list[dict[str, NDArray[Any]]] = []
        step, dp = np.meshgrid(np.arange(self.steps), np.arange(self.dp), indexing="ij")
        for kind, stage, at, chunk, work, start, end in self.rows:
            size = step.size
            parts.append(
                {
                    "dp_rank": dp.ravel(),
                    "stage": np.full(size, stage),
                    "rank": (stage * self.dp + dp.ravel()) * self.job.tp,
                    "step": 100 + 3 * step.ravel(),
                    "optype": np.full(size, kind),
                    "start_ts": start.ravel(),
                    "duration": (end - start).ravel(),
                    "seq_id": np.full(size, at),
                    "mc": np.full(size, min(chunk, 0)),
                    "mb_id": np.full(size, work),
                    "gmc": np.full(size, chunk),
                }
            )
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
