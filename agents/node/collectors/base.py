"""What a source of the node agent has to offer, and how it is watched itself.

Contract: `Source.read` never raises for an OSError of its collector; it says so in
`tailwatch_source_up`. A collector adds samples it knows and leaves out what it does not know.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

from tailwatch.agents.service import log
from tailwatch.exposition import Snapshot


class NodeConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What the node agent was told: its node, where the rings lie, where the step log goes."""

    node: str
    rings: Path
    log: Path


class Collector(Protocol):
    """One source: `read` looks at it, `add_to` puts what it knows into a snapshot."""

    name: ClassVar[str]

    def __init__(self, config: NodeConfig) -> None: ...

    def read(self) -> None:
        """Look at the source; raise OSError when it cannot be read."""

    def add_to(self, snapshot: Snapshot) -> None:
        """Add the samples of what was read."""

    def close(self) -> None:
        """Let go of the source."""


class Source:
    """A collector with its own health: success, age of the data and duration of the last read."""

    def __init__(self, collector: Collector, node: str) -> None:
        self.collector = collector
        self._node = node
        self._succeeded_at: float | None = None
        self._read_seconds: float | None = None
        self._error = ""

    def read(self) -> None:
        """Read the collector once, and note how that went."""
        started = time.monotonic()
        error = ""
        try:
            self.collector.read()
        except OSError as problem:
            error = str(problem)
        ended = time.monotonic()
        self._read_seconds = ended - started
        if not error:
            self._succeeded_at = ended
        if error != self._error:
            log(f"source {self.collector.name}: {error or 'reads again'}")
        self._error = error

    def add_to(self, snapshot: Snapshot) -> None:
        """Add the collector's samples and those about the source itself."""
        self.collector.add_to(snapshot)
        if self._read_seconds is None:
            return
        labels = {"node": self._node, "source": self.collector.name}
        snapshot.add("tailwatch_source_up", 0 if self._error else 1, **labels)
        snapshot.add("tailwatch_source_read_seconds", self._read_seconds, **labels)
        if self._succeeded_at is not None:
            age = time.monotonic() - self._succeeded_at
            snapshot.add("tailwatch_source_age_seconds", age, **labels)
