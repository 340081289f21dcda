"""What the job agent knows of restarts, from the `resumed` events of rank 0.

Contract: changes only by `take`; counters are there from the start at 0, gauges once a restart was
measured. An attempt counts once. Part of the saved `JobState`, so it survives the agent.
"""

from __future__ import annotations

import msgspec

from tailwatch.catalogue.restart import RESTART_PARTS
from tailwatch.exposition import Snapshot
from tailwatch.records import Event


class Restarts(msgspec.Struct, kw_only=True):
    """Seconds of restarts by part, of all and of the last one."""

    attempt: int = 0
    measured: int = 0
    seconds: dict[str, float] = msgspec.field(
        default_factory=lambda: dict.fromkeys(RESTART_PARTS, 0.0)
    )
    last: dict[str, float] = {}

    def take(self, event: Event) -> None:
        """Take one event; one without all parts is left out."""
        if event.kind != "resumed" or event.attempt <= self.attempt:
            return
        try:
            parts = msgspec.convert(event.detail.get("parts"), dict[str, float])
            self.last = {part: parts[part] for part in RESTART_PARTS}
        except (msgspec.ValidationError, KeyError):
            return
        self.attempt = event.attempt
        self.measured += 1
        for part, seconds in self.last.items():
            self.seconds[part] += seconds

    def add(self, snapshot: Snapshot, labels: dict[str, str]) -> None:
        """Add the samples."""
        snapshot.add("tailwatch_restart_measured_total", self.measured, **labels)
        for part, seconds in self.seconds.items():
            snapshot.add("tailwatch_restart_part_seconds_total", seconds, **labels, part=part)
        for part, seconds in self.last.items():
            snapshot.add("tailwatch_restart_last_part_seconds", seconds, **labels, part=part)
