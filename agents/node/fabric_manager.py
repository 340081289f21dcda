"""The part of the source `xid` that reads the log of NVIDIA's fabric manager.

Contract: errors of NVSwitches count as SXid, once, whether this log, the kernel's or both told of
them; failures of the fabric manager itself count under `fabric_manager`. What stood in the log
before the agent was first started on a node is passed over; an agent that is started again goes on
where the log was counted to (`<log>/<node>.fabricmanager`), also when it was rotated meanwhile.

Cost: one read and one stat, twice a second.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from tailwatch.agents.lines.fabric_manager import FabricManagerLines
from tailwatch.agents.node.base import NodeConfig
from tailwatch.agents.node.cursor import CursorFile
from tailwatch.agents.node.ledger import Ledger
from tailwatch.agents.node.log_tail import FilePosition, LogTail
from tailwatch.exposition import Snapshot


class _Cursor(msgspec.Struct):
    """Up to where a log has been counted."""

    inode: int
    offset: int


class FabricManagerLog:
    """The part that reads the fabric manager's log."""

    key = "fabricmanager"

    def __init__(self, config: NodeConfig, ledger: Ledger, path: Path) -> None:
        self._ledger = ledger
        self._cursor = CursorFile(config.log / f"{config.node}.fabricmanager", _Cursor)
        known = self._cursor.load()
        after = None if known is None else FilePosition(known.inode, known.offset)
        self._tail = LogTail(path, after)
        self._lines = FabricManagerLines()
        self._unsaved = known is None
        self._reads = 0
        self.succeeded_at: float | None = None

    def read(self) -> None:
        # What the read before counted: a process that reads only once leaves no trace.
        self._save()
        self._reads += 1
        now = time.time()
        found = [f for line in self._tail.read() if (f := self._lines.match(line)) is not None]
        for finding in found:
            self._ledger.count(finding, now, "fabric_manager")
        if found:
            self._ledger.publish()
            self._unsaved = True
        self.succeeded_at = time.monotonic()

    def _save(self) -> None:
        position = self._tail.position
        if self._unsaved and position is not None:
            self._unsaved = not self._cursor.save(_Cursor(*position))

    def add_to(self, snapshot: Snapshot) -> None:
        """Add nothing: what all parts count belongs to the source."""

    def close(self) -> None:
        if self._reads > 1:
            self._save()
        self._tail.close()
