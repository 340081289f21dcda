"""What the runner did and saw, one durable line each, and whether its clocks can be believed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tailwatch.evidence import Observation, ObservationKind
from tailwatch.files import append_line


class Clock(Protocol):
    """Wall and monotonic time in nanoseconds; injected, so that a jump can be tested."""

    def time_ns(self) -> int:
        """Wall time."""
        ...

    def monotonic_ns(self) -> int:
        """Monotonic time."""
        ...


class Timeline:
    """The writer of `timeline.jsonl`; `experiment` names the one that lines belong to."""

    def __init__(self, path: Path, clock: Clock = time) -> None:
        self._path = path
        self._clock = clock
        self._offset_ns = clock.time_ns() - clock.monotonic_ns()
        self.experiment: str | None = None

    def note(self, kind: ObservationKind, **data: Any) -> int:
        """Write one observation, durably; return its wall time in ns."""
        now = self._clock.time_ns()
        observation = Observation(
            time_ns=now,
            mono_ns=self._clock.monotonic_ns(),
            kind=kind,
            experiment=self.experiment,
            data=data,
        )
        append_line(self._path, msgspec.json.encode(observation) + b"\n", durable=True)
        return now

    def monotonic(self) -> float:
        """Return monotonic time in seconds."""
        return self._clock.monotonic_ns() / 1e9

    def jump_seconds(self) -> float:
        """Return how far wall time has moved away from monotonic time since the start."""
        return (self._clock.time_ns() - self._clock.monotonic_ns() - self._offset_ns) / 1e9
