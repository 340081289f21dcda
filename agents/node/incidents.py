"""Counts what kernel log, NVML and fabric manager report: each event once, a burst as one incident.

Contract: an event that two of them report is counted once, whichever comes first. Events of one
code on one device belong to one incident until `BURST_SECONDS` have passed without another. An Xid
that only follows others (45) is one incident for the whole node. How many series there can be is
bounded; what is over that bound is counted under the code `other` and without a device.

Cost: about 2 us an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from tailwatch.agents.lines import Entry, Finding, Severity

BURST_SECONDS = 60.0
# How far apart two may tell of the same event: either of them may be stuck a while.
_PAIR_SECONDS = 60.0
# A GPU that falls off the bus is told of in several lines, one of them with a number.
_LOST_SECONDS = 2.0
_LOST = "79"
_OF_SEVERAL = frozenset({"xid", "sxid"})
_MAX_SERIES = 2_000
_MAX_UNPAIRED = 64

Reporter = Literal["kernel", "nvml", "fabric_manager"]


class Series(NamedTuple):
    """What events are counted by."""

    kind: str
    device: str
    code: str
    severity: Severity


class Last(NamedTuple):
    """When something happened last, and what to do about it."""

    time: float
    action: str


class Incident(NamedTuple):
    """The kind of thing that one burst of events was."""

    kind: str
    code: str
    severity: Severity


class Incidents:
    """The counts of a node.

    Attributes:
        events: events by series.
        incidents: bursts of events.
        last: the newest event of each series, those before this process started among them.
    """

    def __init__(self) -> None:
        self.events: dict[Series, int] = {}
        self.incidents: dict[Incident, int] = {}
        self.last: dict[Series, Last] = {}
        self._open: dict[tuple[str, str, str], float] = {}
        self._unpaired: dict[tuple[str, str, str], deque[tuple[Reporter, float]]] = {}
        self._fell: dict[str, float] = {}

    def expect(self, kind: str, entries: Mapping[str, Entry]) -> None:
        """Begin to count the incidents of these codes at 0."""
        for code, entry in entries.items():
            for severity in severities(entry):
                self.incidents.setdefault(Incident(kind, code, severity), 0)

    def expect_on(self, device: str, kind: str, entries: Mapping[str, Entry]) -> None:
        """Begin to count the events of these codes on a device at 0."""
        for code, entry in entries.items():
            for severity in severities(entry):
                self.events.setdefault(Series(kind, device, code, severity), 0)

    def note(self, finding: Finding, time: float) -> None:
        """Remember when something happened that an earlier process has counted."""
        series = self._series(finding)
        known = self.last.get(series)
        if known is None or known.time < time:
            self.last[series] = Last(time, finding.action)

    def count(self, finding: Finding, time: float, reporter: Reporter) -> bool:
        """Count an event; return whether it is the first of an incident.

        Args:
            time: when it happened, in unix seconds.
        """
        code = finding.implies_xid or finding.code
        kind = "xid" if finding.implies_xid else finding.kind
        if kind in _OF_SEVERAL and self._is_told_twice(kind, finding.device, code, time, reporter):
            return False
        self.note(finding, time)
        series = self._series(finding)
        self.events[series] = self.events.get(series, 0) + 1
        where = "" if finding.action == "follow_other" else finding.device
        opened = self._open.get((kind, where, code))
        self._open[kind, where, code] = time if opened is None else max(time, opened)
        if opened is not None and time - opened <= BURST_SECONDS:
            return False
        incident = Incident(series.kind, series.code, series.severity)
        self.incidents[incident] = self.incidents.get(incident, 0) + 1
        if len(self._open) > _MAX_SERIES:
            self._forget(time)
        return True

    def _is_told_twice(
        self, kind: str, device: str, code: str, time: float, reporter: Reporter
    ) -> bool:
        """Whether another reporter has told of this event before; else remember it."""
        told = self._unpaired.setdefault((kind, device, code), deque(maxlen=_MAX_UNPAIRED))
        if kind == "xid" and reporter == "kernel" and code == _LOST:
            before = self._fell.get(device)
            self._fell[device] = time
            if before is not None and abs(time - before) <= _LOST_SECONDS:
                return True
        for who, at in told:
            if who != reporter and abs(time - at) <= _PAIR_SECONDS:
                told.remove((who, at))
                return True
        told.append((reporter, time))
        return False

    def _series(self, finding: Finding) -> Series:
        code = finding.implies_xid or finding.code
        kind = "xid" if finding.implies_xid else finding.kind
        series = Series(kind, finding.device, code, finding.severity)
        if series not in self.last and len(self.last) >= _MAX_SERIES:
            return Series(kind, "", "other", finding.severity)
        return series

    def _forget(self, time: float) -> None:
        """Drop what can no longer be part of a burst or a pair."""
        self._open = {k: at for k, at in self._open.items() if time - at <= BURST_SECONDS}
        self._unpaired = {
            key: told
            for key, told in self._unpaired.items()
            if any(time - at <= _PAIR_SECONDS for _, at in told)
        }


def severities(entry: Entry) -> Iterable[Severity]:
    """Return the severities an event of a code can have."""
    return ("fatal", "warning") if entry.by_line else (entry.severity,)
