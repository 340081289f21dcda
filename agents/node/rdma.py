"""One RDMA device that is no EFA: states, counters and driver counters of its ports.

Contract: `read` takes everything that reads. A file that fails while another reads is left alone
for an hour and counted; when no file reads, the first error is raised, and the next attempts ask
one file only until that reads again. `seen` is one immutable value.

Cost: one pread a counter, three small files a port.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tailwatch.agents.node.collectors.base import ResetWatch, SourceError
from tailwatch.agents.node.sysfs import OpenFile, attribute, identity, names_in
from tailwatch.catalogue.infiniband import PORT_COUNTERS, PortCounter
from tailwatch.exposition import Snapshot, series

ACTIVE = 4
LEAVE_ALONE_SECONDS = 3600.0
MOST_HW_COUNTERS = 128
# What drivers show beside their counters: sizes, limits and how much is in use now.
_NO_COUNTER = re.compile(r"(?i)lifespan|(active|watermark|max|current|num)[_ ].*|.*[_ ]watermark")
# What fails for one file fails for all of them.
_OF_THE_DEVICE = frozenset(
    {errno.ENODEV, errno.ENXIO, errno.ETIME, errno.ETIMEDOUT, errno.ESHUTDOWN}
)
_HW_EVENTS = "tailwatch_infiniband_hw_events_total"
_SATURATED = "tailwatch_infiniband_counter_saturated"
_RATE = re.compile(r"([0-9.]+) Gb/sec")


class Counter:
    """A counter file with its metric, and until when it is left alone."""

    __slots__ = ("_described", "_file", "_path", "_saturated", "_series", "alone_until", "key")

    def __init__(self, path: Path, labels: dict[str, str], described: PortCounter | None) -> None:
        self._path = path
        self._file: OpenFile | None = None
        self.alone_until = 0.0
        # Counters of the driver keep their own names, as a label.
        counter = {**labels, "counter": path.name}
        self._described = described or PortCounter(_HW_EVENTS)
        self._series = series(self._described.name, **(labels if described else counter))
        self._saturated = series(_SATURATED, **counter)
        self.key = self._series

    def read(self) -> int:
        if self._file is None:
            self._file = OpenFile(self._path)
        value = self._file.read()
        if value is None:
            raise SourceError("not_a_number", f"{self._path}: holds no number")
        return value

    def add_to(self, snapshot: Snapshot, value: int) -> None:
        name, factor, top = self._described
        if value == top:
            snapshot.put(_SATURATED, self._saturated, 1)
            if name.endswith(("_bytes_total", "_packets_total")):
                return
        snapshot.put(name, self._series, value * factor)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class PortSeen(NamedTuple):
    """One port as of a read; rate in bytes per second."""

    port: str
    state: int | None
    physical_state: int | None
    rate: float | None
    link_layer: str
    was_active: bool


class DeviceSeen(NamedTuple):
    """One device as of a read: ports, counters with their values, and interfaces that are up."""

    ports: tuple[PortSeen, ...] = ()
    counters: tuple[tuple[Counter, int], ...] = ()
    interfaces: tuple[tuple[str, bool], ...] = ()
    unreadable: int = 0


class _Attribute:
    """A file with text that may change; "" while it cannot be read."""

    __slots__ = ("_file", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: OpenFile | None = None

    def text(self) -> str:
        try:
            if self._file is None:
                self._file = OpenFile(self._path)
            return self._file.text()
        except OSError:
            self.close()
            return ""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Port:
    """The attributes of one port."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.link_layer = attribute(folder / "link_layer")
        self.state = _Attribute(folder / "state")
        self.physical_state = _Attribute(folder / "phys_state")
        self.rate = _Attribute(folder / "rate")
        self.was_active = False

    def look(self) -> PortSeen:
        state = _leading_number(self.state.text())
        self.was_active = self.was_active or state == ACTIVE
        rate = _RATE.match(self.rate.text())
        return PortSeen(
            port=self.name,
            state=state,
            physical_state=_leading_number(self.physical_state.text()),
            rate=float(rate[1]) * 1e9 / 8 if rate else None,
            link_layer=self.link_layer,
            was_active=self.was_active,
        )

    def close(self) -> None:
        for file in (self.state, self.physical_state, self.rate):
            file.close()


class RdmaDevice:
    """The part of one device."""

    def __init__(self, entry: Path, node: str) -> None:
        self.key = entry.name
        self.resets = ResetWatch()
        self.seen = DeviceSeen()
        self._entry = entry
        self._labels = {"node": node, "device": entry.name}
        self._identity: tuple[int, int] | None = None
        self._ports: list[_Port] = []
        self._interfaces: list[tuple[str, _Attribute]] = []
        self._was_active: set[str] = set()
        self._files: list[Counter] = []
        self._dead = False
        self._probe: Counter | None = None

    def read(self) -> None:
        found = identity(self._entry)
        if found != self._identity:
            self._open(found)
        try:
            if self._dead and self._probe is not None:
                self._probe.read()
            values = self._read_files(time.monotonic())
        except (OSError, SourceError):
            self._dead = True
            for file in self._files:
                file.close()
            raise
        self._dead = False
        self._probe = values[0][0] if values else None
        self._note(values)

    def _read_files(self, now: float) -> list[tuple[Counter, int]]:
        values: list[tuple[Counter, int]] = []
        failed: list[tuple[Counter, Exception]] = []
        for file in self._files:
            if now < file.alone_until:
                continue
            try:
                values.append((file, file.read()))
            except (OSError, SourceError) as error:
                if isinstance(error, OSError) and error.errno in _OF_THE_DEVICE:
                    raise
                failed.append((file, error))
        if failed and not values:
            self._probe = self._probe or failed[0][0]
            raise failed[0][1]
        for file, _ in failed:
            file.close()
            file.alone_until = now + LEAVE_ALONE_SECONDS
        return values

    def _open(self, found: tuple[int, int]) -> None:
        self.close()
        folders = [self._entry / "ports" / name for name in names_in(self._entry / "ports")]
        self._ports = [_Port(folder) for folder in folders if folder.name.isdecimal()]
        for port in self._ports:
            port.was_active = port.name in self._was_active
        net = self._entry / "device/net"
        self._interfaces = [(name, _Attribute(net / name / "operstate")) for name in _listed(net)]
        self._files = list(self._find_files())
        self._identity = found

    def _find_files(self) -> Iterator[Counter]:
        ports = [port.name for port in self._ports]
        for port in ports:
            folder = self._entry / "ports" / port / "counters"
            for name in _listed(folder):
                if name in PORT_COUNTERS:
                    labels = {**self._labels, "port": port}
                    yield Counter(folder / name, labels, PORT_COUNTERS[name])
        for port in ("", *ports):
            folder = self._entry / (f"ports/{port}/hw_counters" if port else "hw_counters")
            for name in _listed(folder)[:MOST_HW_COUNTERS]:
                if not _NO_COUNTER.fullmatch(name):
                    yield Counter(folder / name, {**self._labels, "port": port}, None)

    def _note(self, values: list[tuple[Counter, int]]) -> None:
        # A counter that sticks falls when it is cleared, and that is a reset like any other.
        self.resets.see({counter.key: value for counter, value in values})
        now = time.monotonic()
        self.seen = DeviceSeen(
            ports=tuple(port.look() for port in self._ports),
            counters=tuple(values),
            interfaces=tuple(
                (name, text == "up") for name, state in self._interfaces if (text := state.text())
            ),
            unreadable=sum(1 for file in self._files if now < file.alone_until),
        )

    def add_to(self, snapshot: Snapshot) -> None:
        seen, labels = self.seen, self._labels
        for counter, value in seen.counters:
            counter.add_to(snapshot, value)
        for port_seen in seen.ports:
            self._add_port(snapshot, port_seen)
        for interface, up in seen.interfaces:
            name = "tailwatch_infiniband_interface_up"
            snapshot.add(name, int(up), **labels, interface=interface)
        snapshot.add("tailwatch_infiniband_unreadable_files", seen.unreadable, **labels)

    def _add_port(self, snapshot: Snapshot, seen: PortSeen) -> None:
        labels = {**self._labels, "port": seen.port}
        snapshot.add("tailwatch_infiniband_port_state", seen.state, **labels)
        name = "tailwatch_infiniband_port_physical_state"
        snapshot.add(name, seen.physical_state, **labels)
        snapshot.add("tailwatch_infiniband_port_rate_bytes_per_second", seen.rate, **labels)
        name = "tailwatch_infiniband_port_info"
        snapshot.add(name, 1, **labels, link_layer=seen.link_layer)

    def close(self) -> None:
        for file in self._files:
            file.close()
        for port in self._ports:
            port.close()
            if port.was_active:
                self._was_active.add(port.name)
        for _, state in self._interfaces:
            state.close()
        self._files = []
        self._ports = []
        self._interfaces = []
        self._identity = self._probe = None
        self._dead = False


def _listed(folder: Path) -> list[str]:
    """Return what a folder holds; nothing when it is not there, as with drivers without a PMA."""
    try:
        return names_in(folder)
    except OSError:
        return []


def _leading_number(text: str) -> int | None:
    """Return 4 for `4: ACTIVE`; None for anything else."""
    number, colon, _ = text.partition(":")
    return int(number) if colon and number.isdecimal() else None
