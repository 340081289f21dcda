"""What the job agent knows of checkpoints, from the events of rank 0.

Contract: changes only by `take`; counters are there from the start at 0, gauges once an event has
named them. Part of the saved `JobState`, so it survives the agent, and the job anyway.

Cost: a few dictionary updates an event.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailwatch.catalogue.checkpoint import (
    CHECKPOINT_FAILURES,
    CHECKPOINT_PHASES,
    CHECKPOINT_STATES,
)
from tailwatch.exposition import Snapshot
from tailwatch.records import Event


class Checkpoints(msgspec.Struct, kw_only=True):
    """Counts and seconds of saves and loads, and how the disk stood last."""

    saves: int = 0
    saved_bytes: float = 0
    loads: int = 0
    phases: dict[str, float] = msgspec.field(
        default_factory=lambda: dict.fromkeys(CHECKPOINT_PHASES, 0.0)
    )
    failures: dict[str, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(CHECKPOINT_FAILURES, 0)
    )
    last_step: dict[str, int] = {}
    now: dict[str, float] = {}

    def take(self, event: Event) -> None:
        """Take one event; what is no number where one should be is left out."""
        kind, detail = event.kind, event.detail
        state = kind.removeprefix("checkpoint_")
        if state in CHECKPOINT_STATES and event.step is not None:
            self.last_step[state] = max(event.step, self.last_step.get(state, event.step))
        if kind == "checkpoint_verified":
            self.saves += 1
            size = _number(detail.get("bytes"))
            self.saved_bytes += size or 0
            self._note("size_bytes", size)
            self._note("saves_until_full", _number(detail.get("saves_until_full")))
        elif kind == "restore":
            self.loads += 1
        elif kind == "failure" and "checkpoint" in detail:
            reason = detail.get("reason")
            known = reason if reason in CHECKPOINT_FAILURES else "other"
            self.failures[known] = self.failures.get(known, 0) + 1
        if kind in ("checkpoint_verified", "restore"):
            for name in ("quarantined", "free_bytes", "free_inodes"):
                self._note(name, _number(detail.get(name)))
            phases = detail.get("phases")
            if isinstance(phases, dict):
                for phase in CHECKPOINT_PHASES:
                    self.phases[phase] += _number(phases.get(phase)) or 0.0

    def add(self, snapshot: Snapshot, labels: dict[str, str]) -> None:
        """Add the samples."""
        prefix = "tailwatch_checkpoint"
        snapshot.add(f"{prefix}_saves_total", self.saves, **labels)
        snapshot.add(f"{prefix}_saved_bytes_total", self.saved_bytes, **labels)
        snapshot.add(f"{prefix}_loads_total", self.loads, **labels)
        for phase, seconds in self.phases.items():
            snapshot.add(f"{prefix}_phase_seconds_total", seconds, **labels, phase=phase)
        for reason, count in self.failures.items():
            snapshot.add(f"{prefix}_failures_total", count, **labels, reason=reason)
        for state, step in self.last_step.items():
            snapshot.add(f"{prefix}_last_step", step, **labels, state=state)
        for name, value in self.now.items():
            snapshot.add(f"{prefix}_{name}", value, **labels)

    def _note(self, name: str, value: float | None) -> None:
        if value is None:
            self.now.pop(name, None)
        else:
            self.now[name] = value


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
