"""The source `steps`: records and marks of the ranks of this node.

Contract: drains the rings into the step log; a rank's series come from the newest attempt its node
has seen, and vanish with its ring. A file that is no ring is a source of its own that is down.

Cost: see `tailwatch.agents.node.inbox`; about 18 preads a ring for the age of its newest mark.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from tailwatch.agents.node.base import NodeConfig, Part, register
from tailwatch.agents.node.inbox import RingInbox
from tailwatch.agents.node.senders import OpenRing
from tailwatch.exposition import Snapshot
from tailwatch.records import Record, StepRecord
from tailwatch.steplog import StepLog

_SCAN_SECONDS = 0.2


class _Rank:
    """What the records of one rank of one run came to."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.peak_memory_bytes = 0
        self.phases: dict[str, float] = {}


class _RankSeen(NamedTuple):
    """One rank as of a read; marked_ns is the monotonic time of its newest mark."""

    run: str
    rank: int
    marked_ns: int | None
    step: int | None
    peak_memory_bytes: int | None
    phases: tuple[tuple[str, float], ...]


class _Seen(NamedTuple):
    """Everything as of a read."""

    records: int
    lost: int
    rejected: tuple[tuple[str, int], ...]
    rings: int
    broken: tuple[str, ...]
    unnamed: int
    refused: int
    claims_refused: int
    ranks: tuple[_RankSeen, ...]


class _Rings:
    """The rings of a node, read together: the only part of the source."""

    key = ""

    def __init__(self, config: NodeConfig) -> None:
        self._ranks: dict[tuple[str, int], _Rank] = {}
        path = config.log / f"{config.node}.steplog"
        self.inbox = RingInbox(config.rings, path, config.node, self._take)
        self._scanned_at = 0.0
        self.seen = self._look()

    def read(self) -> None:
        now = time.monotonic()
        try:
            if now - self._scanned_at >= _SCAN_SECONDS:
                self._scanned_at = now
                self.inbox.scan()
            self.inbox.drain()
        finally:
            self.seen = self._look()

    def _take(self, record: Record, ring: OpenRing) -> None:
        if not isinstance(record, StepRecord):
            return
        rank = self._ranks.setdefault((ring.reader.run, ring.reader.rank), _Rank())
        rank.step = record.step
        rank.peak_memory_bytes = record.peak_memory_bytes
        for phase, spent_ns in record.phases_ns.items():
            rank.phases[phase] = rank.phases.get(phase, 0.0) + spent_ns / 1e9

    def _look(self) -> _Seen:
        inbox = self.inbox
        rings = inbox.current()
        open_ranks = {ring.rank for ring in inbox.rings.values()}
        self._ranks = {key: rank for key, rank in self._ranks.items() if key in open_ranks}
        return _Seen(
            records=inbox.records,
            lost=inbox.lost,
            rejected=tuple(inbox.rejected.items()),
            rings=len(inbox.rings),
            broken=tuple(inbox.broken),
            unnamed=inbox.unnamed,
            refused=inbox.refused,
            claims_refused=inbox.claims_refused,
            ranks=tuple(map(self._look_at, rings)),
        )

    def _look_at(self, ring: OpenRing) -> _RankSeen:
        try:
            mark = ring.reader.last_mark()
        except OSError:
            mark = None
        rank = self._ranks.get((ring.reader.run, ring.reader.rank), _Rank())
        return _RankSeen(
            run=ring.reader.run,
            rank=ring.reader.rank,
            marked_ns=None if mark is None else mark.mono_ns,
            step=rank.step,
            peak_memory_bytes=rank.peak_memory_bytes or None,
            phases=tuple(rank.phases.items()),
        )

    def add_to(self, snapshot: Snapshot) -> None:
        """Add nothing: what is known of the ranks stays when the step log cannot be written."""

    def close(self) -> None:
        # A last look: what a rank left before it was told to end, too.
        with contextlib.suppress(OSError):
            self.read()
        self.inbox.close()


@register
class StepsCollector:
    """Reads the rings of a node; `log` is the step log they go to."""

    name: ClassVar[str] = "steps"
    interval: ClassVar[float] = 0.2
    deadline: ClassVar[float] = 2.0

    def __init__(self, config: NodeConfig) -> None:
        self._node = config.node
        self._rings = _Rings(config)
        self.log: StepLog = self._rings.inbox.log

    def discover(self) -> Sequence[Part]:
        return (self._rings,)

    def add_to(self, snapshot: Snapshot) -> None:
        seen, node = self._rings.seen, self._node
        snapshot.add("tailwatch_node_records_total", seen.records, node=node)
        snapshot.add("tailwatch_node_records_lost_total", seen.lost, node=node)
        for reason, count in seen.rejected:
            snapshot.add("tailwatch_node_records_rejected_total", count, node=node, reason=reason)
        snapshot.add("tailwatch_node_rings", seen.rings, node=node)
        broken = len(seen.broken) + seen.unnamed
        snapshot.add("tailwatch_node_rings_broken", broken, node=node)
        snapshot.add("tailwatch_node_rings_refused", seen.refused, node=node)
        name = "tailwatch_node_claims_refused_total"
        snapshot.add(name, seen.claims_refused, node=node)
        for name in seen.broken:
            snapshot.add("tailwatch_source_up", 0, node=node, source=f"ring/{name}", device="")
        now = time.monotonic_ns()
        for rank in seen.ranks:
            self._add_rank(snapshot, rank, now)

    def _add_rank(self, snapshot: Snapshot, rank: _RankSeen, now_ns: int) -> None:
        labels: dict[str, str | int] = {"run": rank.run, "node": self._node, "rank": rank.rank}
        if rank.marked_ns is not None:
            age = max(now_ns - rank.marked_ns, 0) / 1e9
            snapshot.add("tailwatch_rank_last_mark_age_seconds", age, **labels)
        snapshot.add("tailwatch_rank_last_step", rank.step, **labels)
        snapshot.add("tailwatch_rank_peak_memory_bytes", rank.peak_memory_bytes, **labels)
        for phase, seconds in rank.phases:
            snapshot.add("tailwatch_rank_phase_seconds_total", seconds, **labels, phase=phase)

    def close(self) -> None:
        """Do nothing: the rings close with their part."""
