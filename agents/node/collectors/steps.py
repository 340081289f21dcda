"""The source `steps`: records and marks of the ranks of this node.

Contract: drains the rings into the step log; a rank's series come from the newest attempt its node
has seen, and vanish with its ring. A file that is no ring is a source of its own that is down.

Cost: see `tailwatch.agents.node.inbox`; about 18 preads a ring for the age of its newest mark.
"""

from __future__ import annotations

import time
from typing import ClassVar

from tailwatch.agents.node.collectors.base import NodeConfig
from tailwatch.agents.node.inbox import OpenRing, RingInbox
from tailwatch.exposition import Snapshot
from tailwatch.records import Record, StepRecord

_SCAN_SECONDS = 0.2


class _Rank:
    """What the records of one rank of one run came to."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.peak_memory_bytes = 0
        self.phases: dict[str, float] = {}


class StepsCollector:
    """Reads the rings of a node; `inbox.log` is the step log they go to."""

    name: ClassVar[str] = "steps"

    def __init__(self, config: NodeConfig) -> None:
        self._node = config.node
        self._ranks: dict[tuple[str, int], _Rank] = {}
        path = config.log / f"{config.node}.steplog"
        self.inbox = RingInbox(config.rings, path, config.node, self._take)
        self._scanned_at = 0.0

    def read(self) -> None:
        now = time.monotonic()
        if now - self._scanned_at >= _SCAN_SECONDS:
            self._scanned_at = now
            self.inbox.scan()
        self.inbox.drain()

    def _take(self, record: Record, ring: OpenRing) -> None:
        if not isinstance(record, StepRecord):
            return
        rank = self._ranks.setdefault((ring.reader.run, ring.reader.rank), _Rank())
        rank.step = record.step
        rank.peak_memory_bytes = record.peak_memory_bytes
        for phase, spent_ns in record.phases_ns.items():
            rank.phases[phase] = rank.phases.get(phase, 0.0) + spent_ns / 1e9

    def add_to(self, snapshot: Snapshot) -> None:
        inbox, node = self.inbox, self._node
        snapshot.add("tailwatch_node_records_total", inbox.records, node=node)
        snapshot.add("tailwatch_node_records_lost_total", inbox.lost, node=node)
        for reason, count in inbox.rejected.items():
            snapshot.add("tailwatch_node_records_rejected_total", count, node=node, reason=reason)
        snapshot.add("tailwatch_node_rings", len(inbox.rings), node=node)
        for name in inbox.broken:
            snapshot.add("tailwatch_source_up", 0, node=node, source=f"ring/{name}")
        newest = inbox.newest_attempts()
        now = time.monotonic_ns()
        for ring in inbox.rings.values():
            if ring.reader.attempt == newest[ring.reader.run]:
                self._add_rank(snapshot, ring, now)

    def _add_rank(self, snapshot: Snapshot, ring: OpenRing, now_ns: int) -> None:
        labels: dict[str, str | int] = {
            "run": ring.reader.run,
            "node": self._node,
            "rank": ring.reader.rank,
        }
        try:
            mark = ring.reader.last_mark()
        except OSError:
            mark = None
        if mark is not None:
            age = max(now_ns - mark.mono_ns, 0) / 1e9
            snapshot.add("tailwatch_rank_last_mark_age_seconds", age, **labels)
        rank = self._ranks.get((ring.reader.run, ring.reader.rank))
        if rank is None:
            return
        snapshot.add("tailwatch_rank_last_step", rank.step, **labels)
        snapshot.add("tailwatch_rank_peak_memory_bytes", rank.peak_memory_bytes or None, **labels)
        for phase, seconds in rank.phases.items():
            snapshot.add("tailwatch_rank_phase_seconds_total", seconds, **labels, phase=phase)

    def close(self) -> None:
        self.inbox.close()
