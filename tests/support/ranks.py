"""Records and rings of ranks that never trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailwatch.records import Event, StepRecord, encode
from tailwatch.ring import RingWriter

RUN = "run-1"
START_NS = 1_790_000_000_000_000_000


def step_record(rank: int = 0, step: int = 1, **changes: Any) -> StepRecord:
    """Return a plausible record; `changes` replace fields."""
    fields: dict[str, Any] = {
        "run": RUN,
        "attempt": 1,
        "step": step,
        "iteration": step // 2,
        "rank": rank,
        "node": f"node-{rank // 2}",
        "world_size": 4,
        "configuration": "grpo-ep4",
        "stage": "grpo",
        "start_ns": START_NS + step * 100_000_000,
        "start_mono_ns": step * 100_000_000,
        "duration_ns": 100_000_000,
        "phases_ns": {"forward_backward": 60_000_000, "unaccounted": 40_000_000},
        "waits_ns": {"ep": 5_000_000},
        "tokens": 256,
        "first_expert": rank * 2,
        "expert_tokens": [100, 100],
        "loss": 0.5,
        "reward": 0.25,
        "eval_reward": 0.5,
        "peak_memory_bytes": 1 << 20,
    }
    return StepRecord(**{**fields, **changes})


def event(kind: Any, **changes: Any) -> Event:
    """Return an event of rank 0; `changes` replace fields."""
    fields: dict[str, Any] = {
        "run": RUN,
        "attempt": 1,
        "time_ns": START_NS,
        "kind": kind,
        "source": "rank0",
        "rank": 0,
        "node": "node-0",
    }
    return Event(**{**fields, **changes})


def ring(directory: Path, rank: int = 0, **changes: Any) -> RingWriter:
    """Return the writer of a small ring of one rank; `changes` replace arguments."""
    fields: dict[str, Any] = {
        "run": RUN,
        "attempt": 1,
        "rank": rank,
        "world_size": 4,
        "node": f"node-{rank // 2}",
        "mark_slots": 64,
        "record_slots": 256,
    }
    return RingWriter(directory, **{**fields, **changes})


def append_steps(
    writer: RingWriter, rank: int, first: int, last: int, **changes: Any
) -> list[bytes]:
    """Append the records of steps `first` to `last` (included) and return them encoded."""
    payloads = [encode(step_record(rank, step, **changes)) for step in range(first, last + 1)]
    for payload in payloads:
        writer.append(payload)
    return payloads
