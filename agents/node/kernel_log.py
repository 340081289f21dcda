"""The part of the source `xid` that reads the kernel log.

Contract: what happened before the agent was first started on a node is dated and counted nowhere;
an agent that is started again goes on where the log was counted to. Records that a process wrote
into the log are not believed.

Cost: about 5 us a record, at most `BATCH` records a read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tailwatch.agents.node.base import NodeConfig
from tailwatch.agents.node.cursor import CursorFile
from tailwatch.agents.node.kmsg import BATCH, Kmsg, Position
from tailwatch.agents.node.ledger import Ledger
from tailwatch.exposition import Snapshot


class _Cursor(msgspec.Struct):
    """Up to where the log of one boot has been counted."""

    boot: str
    sequence: int
    microseconds: int


class KernelLog:
    """The part that reads the kernel log."""

    key = "kmsg"

    def __init__(
        self,
        config: NodeConfig,
        ledger: Ledger,
        opener: Callable[[Path], int],
        reader: Callable[[int, int], bytes],
    ) -> None:
        self._node = config.node
        self._ledger = ledger
        self._cursor = CursorFile(config.log / f"{config.node}.kmsg", _Cursor)
        self._boot = _boot_id(config.procfs)
        known = self._cursor.load()
        after = None
        self._counting = known is not None
        if known is not None and known.boot == self._boot:
            after = Position(known.sequence, known.microseconds)
        self._kmsg = Kmsg(config.kmsg, after=after, opener=opener, reader=reader)
        self._live = False
        self._unsaved: Position | None = None
        self._reads = 0
        self._counts: tuple[int, int] | None = None
        self.succeeded_at: float | None = None

    def read(self) -> None:
        # What the read before counted: a process that reads only once leaves no trace.
        self._save()
        self._reads += 1
        records = self._kmsg.read()
        now, uptime = time.time(), time.monotonic()
        changed = False
        for record in records:
            if record.facility != 0:
                continue
            finding = self._ledger.lines.match(record.text)
            if finding is None:
                continue
            changed = True
            # The clock of the log is not disciplined: for what is new, now is the better time.
            at = now if self._live else now - max(uptime - record.microseconds / 1e6, 0.0)
            if self._counting:
                self._ledger.count(finding, at, "kernel")
            else:
                self._ledger.note(finding, at)
        if changed:
            self._ledger.publish()
        if len(records) < BATCH:
            if changed or not self._live:
                self._unsaved = self._kmsg.position
            self._live = self._counting = True
        self._counts = (self._kmsg.records, self._kmsg.lost)
        self.succeeded_at = time.monotonic()

    def _save(self) -> None:
        position = self._unsaved
        if position is not None and self._cursor.save(_Cursor(self._boot, *position)):
            self._unsaved = None

    def add_to(self, snapshot: Snapshot) -> None:
        if self._counts is not None:
            records, lost = self._counts
            snapshot.add("tailwatch_kernel_log_records_total", records, node=self._node)
            snapshot.add("tailwatch_kernel_log_records_lost_total", lost, node=self._node)

    def close(self) -> None:
        if self._reads > 1:
            self._save()
        self._kmsg.close()


def _boot_id(procfs: Path) -> str:
    try:
        return (procfs / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
