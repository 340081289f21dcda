"""The source `xid`: what the kernel log and NVML tell of GPUs, NVSwitches, EFA and mlx5 devices.

Contract: an event is counted once, whoever told of it; what happened before the agent was first
started shows in the time of the last event and is counted nowhere. An agent that is started again
goes on where the log was counted to (`<log>/<node>.kmsg`), so nothing is counted twice and nothing
that happened meanwhile is missed. Only what the kernel itself wrote is believed; a text that
somebody wrote into the log is not. The series stay while at least one of the two tells something.

Cannot see: what was overwritten in the kernel's ring before it was read (counted as lost), and NVML
events from before this process registered for them.

Cost: 5 us a record of the log, two reads a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from tailwatch.agents.lines import Finding, KernelLines
from tailwatch.agents.lines.kernel import with_names
from tailwatch.agents.node.collectors.base import NodeConfig, Part, register
from tailwatch.agents.node.incidents import Incident, Incidents, Last, Reporter, Series
from tailwatch.agents.node.kmsg import BATCH, Kmsg, Position, open_kmsg
from tailwatch.agents.node.nvml_events import NvmlEvents
from tailwatch.agents.service import log
from tailwatch.exposition import Snapshot
from tailwatch.files import write_durably

_FRESH_SECONDS = 10.0
_NIC_DRIVERS = ("efa", "mlx5_core")


class _Cursor(msgspec.Struct):
    """Up to where the log of one boot has been counted."""

    boot: str
    sequence: int
    microseconds: int


class _Counted(msgspec.Struct, frozen=True):
    """All counts as of one moment."""

    events: tuple[tuple[Series, int], ...] = ()
    incidents: tuple[tuple[Incident, int], ...] = ()
    last: tuple[tuple[Series, Last], ...] = ()


class Ledger:
    """What all parts of the source count into.

    Attributes:
        lines: the rules that hold on this node.
        counted: the counts as of the last change.
    """

    def __init__(self, config: NodeConfig) -> None:
        self._sysfs = config.sysfs
        self.lines = KernelLines(config.instance_type, config.line_overrides)
        self._incidents = Incidents()
        self._incidents.expect("xid", self.lines.xids)
        for rule in self.lines.rules:
            if not rule.implies_xid:
                self._incidents.expect(rule.kind, {rule.code: rule.entry})
        self._per_gpu = {c: e for c, e in self.lines.xids.items() if e.per_gpu}
        self._names: dict[str, str] = {}
        self.gpus: frozenset[str] = frozenset()
        self.counted = _Counted()
        self.find_devices()

    def find_devices(self) -> None:
        """Look which devices there are, and begin their counters at 0."""
        found = frozenset(_bound(self._sysfs, "nvidia"))
        for gpu in found - self.gpus:
            self._incidents.expect_on(gpu, "xid", self._per_gpu)
        self.gpus |= found
        if _bound(self._sysfs, "nvidia-nvswitch"):
            self._incidents.expect("sxid", self.lines.sxids)
        self._names = {
            address: name
            for driver in _NIC_DRIVERS
            for address in _bound(self._sysfs, driver)
            for name in _entries(self._sysfs / "bus/pci/devices" / address / "infiniband")[:1]
        }
        self.publish()

    def note(self, finding: Finding, at: float) -> None:
        """Take an event that was counted before."""
        self._incidents.note(with_names(finding, self._names), at)

    def count(self, finding: Finding, at: float, reporter: Reporter) -> None:
        """Count an event, and tell people of the first of a burst."""
        finding = with_names(finding, self._names)
        if self._incidents.count(finding, at, reporter):
            where = f" on {finding.device}" if finding.device else ""
            log(
                f"{finding.kind} {finding.code}{where}: {finding.meaning} "
                f"({finding.severity}, {finding.action})"
            )

    def publish(self) -> None:
        """Make the counts as they are now the ones that are exported."""
        incidents = self._incidents
        self.counted = _Counted(
            tuple(incidents.events.items()),
            tuple(incidents.incidents.items()),
            tuple(incidents.last.items()),
        )


class _KernelLog:
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
        self._cursor_path = config.log / f"{config.node}.kmsg"
        self._boot = _boot_id(config.procfs)
        known = _read_cursor(self._cursor_path)
        after = None
        self._counting = known is not None
        if known is not None and known.boot == self._boot:
            after = Position(known.sequence, known.microseconds)
        self._kmsg = Kmsg(config.kmsg, after=after, opener=opener, reader=reader)
        self._live = False
        self._unsaved: Position | None = None
        self._save_failed = False
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
        position, self._unsaved = self._unsaved, None
        if position is None:
            return
        data = msgspec.json.encode(_Cursor(self._boot, *position))
        try:
            write_durably(self._cursor_path, data)
        except OSError as error:
            # The log is read all the same; only a restart would count from an older position.
            if not self._save_failed:
                log(f"source xid: the position in the kernel log cannot be kept: {error}")
            self._save_failed = True
            self._unsaved = position

    def add_to(self, snapshot: Snapshot) -> None:
        if self._counts is not None:
            records, lost = self._counts
            snapshot.add("tailwatch_kernel_log_records_total", records, node=self._node)
            snapshot.add("tailwatch_kernel_log_records_lost_total", lost, node=self._node)

    def close(self) -> None:
        if self._reads > 1:
            self._save()
        self._kmsg.close()


class _Nvml:
    """The part that takes NVML's events."""

    key = "nvml"

    def __init__(self, config: NodeConfig, ledger: Ledger) -> None:
        self._ledger = ledger
        self._events = NvmlEvents(config.nvml_library)
        self.succeeded_at: float | None = None

    def read(self) -> None:
        now = time.time()
        events = self._events.read()
        for event in events:
            finding = self._ledger.lines.xid(str(event.xid), event.device)
            self._ledger.count(finding, now, "nvml")
        if events:
            self._ledger.publish()
        self.succeeded_at = time.monotonic()

    def add_to(self, snapshot: Snapshot) -> None:
        """Add nothing: what both parts count belongs to the source."""

    def close(self) -> None:
        self._events.close()


@register
class XidCollector:
    """Counts what happened to the devices of a node."""

    name: ClassVar[str] = "xid"
    interval: ClassVar[float] = 0.5
    deadline: ClassVar[float] = 2.0

    def __init__(
        self,
        config: NodeConfig,
        *,
        opener: Callable[[Path], int] = open_kmsg,
        reader: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._config = config
        self._node = config.node
        self._ledger = Ledger(config)
        self._kernel = _KernelLog(config, self._ledger, opener, reader)
        self._nvml: _Nvml | None = None

    def discover(self) -> Sequence[Part]:
        self._ledger.find_devices()
        if self._nvml is None and self._ledger.gpus:
            self._nvml = _Nvml(self._config, self._ledger)
        return (self._kernel,) if self._nvml is None else (self._kernel, self._nvml)

    def add_to(self, snapshot: Snapshot) -> None:
        told = [part.succeeded_at for part in (self._kernel, self._nvml) if part is not None]
        if not any(at is not None and time.monotonic() - at < _FRESH_SECONDS for at in told):
            return
        counted, node = self._ledger.counted, self._node
        for (kind, device, code, severity), count in counted.events:
            self._add_events(snapshot, kind, count, device, code, severity)
        for incident, count in counted.incidents:
            snapshot.add("tailwatch_kernel_incidents_total", count, node=node, **incident._asdict())
        for series, last in counted.last:
            snapshot.add(
                "tailwatch_kernel_last_event_timestamp_seconds", last.time,
                node=node, **series._asdict(), action=last.action,
            )  # fmt: skip

    def _add_events(
        self, snapshot: Snapshot, kind: str, count: int, device: str, code: str, severity: str
    ) -> None:
        labels = {"node": self._node, "device": device, "severity": severity}
        if kind == "xid":
            snapshot.add("tailwatch_xid_events_total", count, **labels, xid=code)
        elif kind == "sxid":
            snapshot.add("tailwatch_sxid_events_total", count, **labels, sxid=code)
        else:
            snapshot.add("tailwatch_kernel_events_total", count, **labels, kind=kind, code=code)

    def close(self) -> None:
        """Do nothing: each part closes its own."""


def _entries(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _bound(sysfs: Path, driver: str) -> list[str]:
    """Return the PCI addresses of the devices a driver has."""
    return [name for name in _entries(sysfs / "bus/pci/drivers" / driver) if name[4:5] == ":"]


def _boot_id(procfs: Path) -> str:
    try:
        return (procfs / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _read_cursor(path: Path) -> _Cursor | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Cursor)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
