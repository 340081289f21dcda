"""What all parts of the source `xid` count into: the rules that hold here, and the counts.

Contract: the counts that are exported are those of the last `publish`, one immutable value. Of a
device that appears the counters begin at 0, and so do those of every code that is known.

Cost: one listing of four directories a look for devices; about 5 us an event.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tailwatch.agents.lines import Entry, Finding, KernelLines
from tailwatch.agents.lines.fabric_manager import OWN_FINDINGS
from tailwatch.agents.lines.kernel import with_names
from tailwatch.agents.node.base import NodeConfig
from tailwatch.agents.node.incidents import Incident, Incidents, Last, Reporter, Series
from tailwatch.agents.service import log

_NIC_DRIVERS = ("efa", "mlx5_core")


class Counted(msgspec.Struct, frozen=True):
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
        if config.fabricmanager_log is not None:
            for own in OWN_FINDINGS:
                entry = Entry(meaning=own.meaning, severity=own.severity, action=own.action)
                self._incidents.expect(own.kind, {own.code: entry})
        self._per_gpu = {c: e for c, e in self.lines.xids.items() if e.per_gpu}
        self._names: dict[str, str] = {}
        self.gpus: frozenset[str] = frozenset()
        self.counted = Counted()
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
        self.counted = Counted(
            tuple(incidents.events.items()),
            tuple(incidents.incidents.items()),
            tuple(incidents.last.items()),
        )


def _entries(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _bound(sysfs: Path, driver: str) -> list[str]:
    """Return the PCI addresses of the devices a driver has."""
    return [name for name in _entries(sysfs / "bus/pci/drivers" / driver) if name[4:5] == ":"]
