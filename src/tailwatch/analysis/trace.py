"""Operation traces of pipeline and data parallel jobs, in the public parquet format.

Contract: one row an operation with `dp_rank, stage, rank, step, optype, start_ts, duration,
seq_id, mb_id, gmc` (times in seconds, tensor parallel ranks collapsed to one). All ranks do the
same operations in all steps, so a trace is one array of shape (steps, dp ranks) for each
operation of a stage. Steps in which an operation is missing are left out and counted. Raises
UsageError with file and row for what cannot be: no rows, missing columns, values that are no
number, negative times, times in the future, an operation twice.

Cost: about 0.3 s for 100,000 rows, most of it loading pyarrow.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.errors import UsageError

FORWARD, BACKWARD = "forward-compute", "backward-compute"
P2P = ("forward-send", "forward-recv", "backward-send", "backward-recv")

_INTEGERS = ("dp_rank", "stage", "rank", "step", "seq_id", "mb_id", "gmc")
_SECONDS = ("start_ts", "duration")
_COLUMNS = (*_INTEGERS, *_SECONDS, "optype")
_DAY_SECONDS = 86_400.0

Seconds = NDArray[np.float64]


class Op(NamedTuple):
    """One operation of a stage: its kind and its place among those of its kind."""

    stage: int
    kind: str
    place: int


class Trace(msgspec.Struct, kw_only=True, frozen=True):
    """A trace as arrays.

    `start` and `duration` hold seconds of shape (steps, dp ranks) for each operation; `ranks` the
    global rank of (dp rank, stage); `work` which (model chunk, microbatch) a compute operation
    works on, with chunks counted over the whole model.
    `world_size` counts tensor parallel ranks too: global ranks are numbered with their stride.
    """

    source: str
    steps: NDArray[np.int64]
    stages: int
    dp_size: int
    world_size: int
    ranks: NDArray[np.int64]
    start: dict[Op, Seconds]
    duration: dict[Op, Seconds]
    work: dict[Op, tuple[int, int]]
    dropped_steps: int

    def step_seconds(self) -> Seconds:
        """Return the time from the first start to the last end of each step; shape (steps,)."""
        first = np.min([s.min(axis=1) for s in self.start.values()], axis=0)
        last = np.max([(s + self.duration[op]).max(axis=1) for op, s in self.start.items()], axis=0)
        seconds: Seconds = last - first
        return seconds


def read_trace(path: Path) -> Trace:
    """Return the trace in a parquet file."""
    return _shape(_load(path), str(path))


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise UsageError(
            "reading parquet needs pyarrow: install tailwatch[traces]", source=path
        ) from None
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"no whole parquet file: {first}", source=path) from None
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise UsageError(f"lacks the columns {', '.join(missing)} of a trace", source=path)
    if table.num_rows == 0:
        raise UsageError("holds no rows, expected operations of at least one rank", source=path)
    columns = {}
    for name in _COLUMNS:
        column = table[name]
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise UsageError("is empty, expected a value", source=path, place=f"{name}[{row}]")
        try:
            if name in _SECONDS:
                columns[name] = np.asarray(column.to_numpy(), dtype=np.float64)
            elif name in _INTEGERS:
                columns[name] = np.asarray(column.cast(pa.int64()).to_numpy())
            else:
                columns[name] = np.asarray(column.cast(pa.string()).to_numpy(), dtype=np.str_)
        except (ValueError, TypeError, pa.ArrowException):
            expected = "text" if name == "optype" else "numbers"
            raise UsageError(
                f"is of type {column.type}, expected {expected}", source=path, place=name
            ) from None
    _check_values(columns, path)
    return columns


def _check_values(columns: dict[str, NDArray[Any]], path: Path) -> None:
    horizon = time.time() + _DAY_SECONDS
    for name, wrong, expected in (
        *((n, ~np.isfinite(columns[n]), "a finite number of seconds") for n in _SECONDS),
        *((n, columns[n] < 0, "0 or more") for n in (*_SECONDS, "dp_rank", "stage", "rank")),
        ("start_ts", columns["start_ts"] > horizon, "a time that is not in the future"),
    ):
        if wrong.any():
            row = int(np.argmax(wrong))
            found = columns[name][row]
            raise UsageError(
                f"is {found:g}, expected {expected}", source=path, place=f"{name}[{row}]"
            )


def _shape(columns: dict[str, NDArray[Any]], source: str) -> Trace:
    """Return the columns as one array for each operation."""
    dp, stage, rank = columns["dp_rank"], columns["stage"], columns["rank"]
    dp_size, stages = int(dp.max()) + 1, int(stage.max()) + 1
    if dp_size * stages > len(dp):
        raise UsageError(
            f"names dp_rank {dp_size - 1} and stage {stages - 1} in {len(dp)} rows: no whole step",
            source=source,
        )
    ranks = np.full((dp_size, stages), -1, dtype=np.int64)
    ranks[dp, stage] = rank
    if (ranks < 0).any() or (ranks[dp, stage] != rank).any() or len(np.unique(ranks)) < ranks.size:
        raise UsageError(
            "dp_rank and stage do not name each rank exactly once", source=source, place="rank"
        )
    steps, step_at = np.unique(columns["step"], return_inverse=True)
    kinds, kind_at = np.unique(columns["optype"], return_inverse=True)
    names, op_at = np.unique(
        np.stack([stage, kind_at, columns["seq_id"]]), axis=1, return_inverse=True
    )
    op_at = op_at.reshape(-1)
    cells = (len(steps), dp_size, names.shape[1])
    if np.prod(cells, dtype=np.float64) > 64 * len(dp):
        raise UsageError(
            f"{len(dp)} rows for {cells[0]} steps of {dp_size} dp ranks with {cells[2]} operations:"
            " not every rank does the same in every step",
            source=source,
        )
    place = np.ravel_multi_index((step_at, dp, op_at), cells)
    count = np.bincount(place, minlength=int(np.prod(cells))).reshape(cells)
    if count.max() > 1:
        row = int(np.argmax(count.reshape(-1)[place] > 1))
        raise UsageError(
            f"{columns['optype'][row]} {columns['seq_id'][row]} of rank {rank[row]} in step "
            f"{columns['step'][row]} stands there twice",
            source=source,
            place=f"row {row}",
        )
    whole = count.all(axis=(1, 2))
    if not whole.any():
        raise UsageError(
            f"none of {len(steps)} steps has all operations of all {dp_size * stages} ranks",
            source=source,
        )
    values = {}
    for name in _SECONDS:
        filled = np.zeros(int(np.prod(cells)))
        filled[place] = columns[name]
        values[name] = filled.reshape(cells)[whole]
    chunk, microbatch = np.zeros((2, names.shape[1]), dtype=np.int64)
    chunk[op_at], microbatch[op_at] = columns["gmc"], columns["mb_id"]
    ops = [Op(int(s), str(kinds[k]), int(i)) for s, k, i in names.T]
    if not {FORWARD, BACKWARD} <= {op.kind for op in ops}:
        raise UsageError(
            f"holds no {FORWARD} and {BACKWARD}, expected both", source=source, place="optype"
        )
    stride = int(np.diff(np.sort(ranks.reshape(-1))).min()) if ranks.size > 1 else 1
    return Trace(
        source=source,
        steps=steps[whole],
        stages=stages,
        dp_size=dp_size,
        world_size=ranks.size * stride,
        ranks=ranks,
        start={op: values["start_ts"][:, :, i] for i, op in enumerate(ops)},
        duration={op: values["duration"][:, :, i] for i, op in enumerate(ops)},
        work={
            op: (int(chunk[i]), int(microbatch[i]))
            for i, op in enumerate(ops)
            if op.kind in (FORWARD, BACKWARD)
        },
        dropped_steps=int((~whole).sum()),
    )
