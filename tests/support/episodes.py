"""Recorded runs of the trainer, and step records by hand."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from tailwatch.analysis.steptable import StepTable, step_tables
from tailwatch.records import Record, StepRecord, decode
from tailwatch.steplog import payloads

FIXTURES = Path(__file__).parents[1] / "analysis" / "fixtures"


def recorded_logs(name: str) -> dict[str, bytes]:
    """Return the step logs of a recorded run by node."""
    paths = sorted((FIXTURES / name).glob("*.steplog.gz"))
    return {
        path.name.removesuffix(".steplog.gz"): gzip.decompress(path.read_bytes()) for path in paths
    }


def recorded_records(name: str) -> list[Record]:
    """Return the records of a recorded run."""
    return [decode(payload) for log in recorded_logs(name).values() for _, payload in payloads(log)]


def recorded_table(name: str) -> StepTable:
    """Return the longest table of a recorded run."""
    return max(step_tables(recorded_records(name), name), key=lambda table: len(table.step))


def record(step: int, rank: int, world: int, **changes: Any) -> StepRecord:
    """Return a record of 100 ms, most of it forward_backward; `changes` replace fields."""
    fields: dict[str, Any] = {
        "run": "by-hand",
        "attempt": 1,
        "step": step,
        "iteration": step,
        "rank": rank,
        "node": f"node-{rank // 2}",
        "world_size": world,
        "configuration": f"by-hand/ep{world}",
        "stage": "grpo",
        "start_ns": 10**18 + step * 10**8,
        "start_mono_ns": step * 10**8,
        "duration_ns": 100_000_000,
        "phases_ns": {"forward_backward": 90_000_000, "grad_sync": 10_000_000},
        "waits_ns": {"dp": 10_000_000},
        "tokens": 1000,
    }
    return StepRecord(**(fields | changes))


def lockstep(seconds: list[float], steps: int, phase: str, **changes: Any) -> list[StepRecord]:
    """Return records of ranks that need `seconds` each for a phase and wait for the last."""
    last = max(seconds)
    records = []
    for step in range(1, steps + 1):
        for rank, own in enumerate(seconds):
            waits = {"dp": int((last - own) * 1e9) + 1_000_000}
            experts = {"ep_experts": int(own * 1e9)} if phase == "ep_experts" else {}
            inside = "forward_backward" if experts else phase
            own_changes = {k: v[rank] if isinstance(v, list) else v for k, v in changes.items()}
            records.append(
                record(
                    step,
                    rank,
                    len(seconds),
                    duration_ns=int(last * 1e9) + 1_000_000,
                    phases_ns={inside: int(own * 1e9), "grad_sync": waits["dp"]},
                    children_ns=experts,
                    waits_ns=waits,
                    **own_changes,
                )
            )
    return records
