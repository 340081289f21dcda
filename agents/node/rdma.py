"""One RDMA device that is no EFA: states, counters and driver counters of its ports.

Contract: `read` takes everything that reads; what is done about files that do not is said in
`counter_files`. `look` is for the discovery: interfaces come after their device and are renamed
while it stays. `seen` is one immutable value.

Cost: a read is one pread a counter and three small files a port; a look is a stat and a listing.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tailwatch.agents.node.base import ResetWatch, SourceError
from tailwatch.agents.node.counter_files import CounterFile, CounterFiles, Reading
from tailwatch.agents.node.fabric_load import FabricLoad
from tailwatch.agents.node.sysfs import OpenFiles, attribute, identity, names_in
from tailwatch.catalogue.infiniband import PORT_COUNTERS, PortCounter
from tailwatch.exposition import Snapshot, series

ACTIVE = 4
MOST_HW_COUNTERS = 128
# What drivers show beside their counters: sizes, limits and how much is in use now.
_NO_COUNTER = re.compile(r"(?i)lifespan|(active|watermark|max|current|num)[_ ].*|.*[_ ]watermark")
_HW_EVENTS = "tailwatch_infiniband_hw_events_total"
_SATURATED = "tailwatch_infiniband_counter_saturated"
# The order is that of the arguments of `_port`.
_OF_A_PORT = ("state", "phys_state", "rate")
_RATE = re.compile(r"([0-9.]+) Gb/sec")


class PortSeen(NamedTuple):
    """One port as of a read; rate in bytes per second."""

    port: str
    state: int | None
    physical_state: int | None
    rate: float | None
    link_layer: str
    was_active: bool


class DeviceSeen(NamedTuple):
    """One device as of a read: ports, counters with their values, and interfaces that are up.

    `steady` holds the samples of all but the counters.
    """

    ports: tuple[PortSeen, ...] = ()
    counters: Reading = Reading()
    interfaces: tuple[tuple[str, bool], ...] = ()
    unreadable: int = 0
    steady: Snapshot | None = None


class RdmaDevice:
    """The part of one device."""

    def __init__(self, entry: Path, node: str, load: FabricLoad) -> None:
        self.key = entry.name
        self.resets = ResetWatch()
        self.seen = DeviceSeen()
        self._entry = entry
        self._labels = {"node": node, "device": entry.name}
        self._load = load
        self._found: tuple[int, int] | None = None
        self._opened: tuple[int, int] | None = None
        self._link_layers: dict[str, str] = {}
        self._interfaces: list[str] = []
        self._watched: list[str] | None = None
        self._was_active: set[str] = set()
        self._files = CounterFiles()
        self._states = OpenFiles(())
        self._texts: list[bytes] | None = None

    def look(self) -> None:
        """Note which directory it is and what interfaces it has; the next read goes by that."""
        with contextlib.suppress(OSError):
            self._found = identity(self._entry)
        names = _listed(self._entry / "device/net")
        if names != self._interfaces:
            self._interfaces = names

    def read(self) -> None:
        try:
            if self._found is None:
                self._found = identity(self._entry)
            if self._found != self._opened:
                self._open(self._found)
            counters = self._files.read(time.monotonic())
        except (OSError, SourceError):
            # The driver may be another one by the next time.
            self._found = None
            raise
        # A counter that sticks falls when it is cleared, and that is a reset like any other.
        self.resets.see_row(counters.series, counters.values)
        traffic = counters.traffic()
        if traffic is not None:
            self._load.note(self.key, traffic)
        self._see(counters)

    def _open(self, found: tuple[int, int]) -> None:
        self._close_files()
        ports = self._entry / "ports"
        self._link_layers = {
            name: attribute(ports / name / "link_layer")
            for name in names_in(ports)
            if name.isdecimal()
        }
        self._files = CounterFiles(list(self._find_files()))
        self._opened = found

    def _find_files(self) -> Iterator[CounterFile]:
        ports = list(self._link_layers)
        for port in ports:
            folder = self._entry / "ports" / port / "counters"
            for name in _listed(folder):
                if name in PORT_COUNTERS:
                    yield self._counter(folder / name, port, PORT_COUNTERS[name])
        for port in ("", *ports):
            folder = self._entry / (f"ports/{port}/hw_counters" if port else "hw_counters")
            for name in _listed(folder)[:MOST_HW_COUNTERS]:
                if not _NO_COUNTER.fullmatch(name):
                    # Counters of the driver keep their own names, as a label.
                    labels = {**self._labels, "port": port, "counter": name}
                    yield CounterFile(folder / name, series(_HW_EVENTS, **labels))

    def _counter(self, path: Path, port: str, described: PortCounter) -> CounterFile:
        labels = {**self._labels, "port": port}
        return CounterFile(
            path,
            series(described.name, **labels),
            factor=described.factor,
            top=described.top,
            sticks=series(_SATURATED, **labels, counter=path.name),
            lossy=described.name.endswith(("_bytes_total", "_packets_total")),
            traffic=described.name.endswith("_bytes_total"),
        )

    def _see(self, counters: Reading) -> None:
        if not self._interfaces:
            # It comes after its device, and is not to wait for the next look.
            self._interfaces = _listed(self._entry / "device/net") or self._interfaces
        if self._watched is not self._interfaces:
            self._watch(self._interfaces)
        texts, unreadable, seen = self._states.texts(), self._files.unreadable, self.seen
        if seen.steady is not None and (texts, unreadable) == (self._texts, seen.unreadable):
            self.seen = seen._replace(counters=counters)
            return
        self._texts = texts
        words = iter([text.decode(errors="replace").strip() for text in texts])
        seen = DeviceSeen(
            ports=tuple(
                self._port(port, next(words), next(words), next(words))
                for port in self._link_layers
            ),
            counters=counters,
            interfaces=tuple(
                (name, word == "up")
                for name, word in zip(self._watched or (), words, strict=True)
                if word
            ),
            unreadable=unreadable,
        )
        self.seen = seen._replace(steady=self._steady(seen))

    def _watch(self, interfaces: list[str]) -> None:
        ports, net = self._entry / "ports", self._entry / "device/net"
        self._states.close()
        self._states = OpenFiles(
            [
                *(ports / port / name for port in self._link_layers for name in _OF_A_PORT),
                *(net / name / "operstate" for name in interfaces),
            ]
        )
        self._watched = interfaces
        self._texts = None

    def _port(self, port: str, state: str, physical_state: str, rate: str) -> PortSeen:
        number, gigabits = _leading_number(state), _RATE.match(rate)
        if number == ACTIVE:
            self._was_active.add(port)
        return PortSeen(
            port=port,
            state=number,
            physical_state=_leading_number(physical_state),
            rate=float(gigabits[1]) * 1e9 / 8 if gigabits else None,
            link_layer=self._link_layers[port],
            was_active=port in self._was_active,
        )

    def _steady(self, seen: DeviceSeen) -> Snapshot:
        snapshot, labels = Snapshot(), self._labels
        for port in seen.ports:
            of = {**labels, "port": port.port}
            snapshot.add("tailwatch_infiniband_port_state", port.state, **of)
            snapshot.add("tailwatch_infiniband_port_physical_state", port.physical_state, **of)
            snapshot.add("tailwatch_infiniband_port_rate_bytes_per_second", port.rate, **of)
            snapshot.add("tailwatch_infiniband_port_info", 1, **of, link_layer=port.link_layer)
        for interface, up in seen.interfaces:
            name = "tailwatch_infiniband_interface_up"
            snapshot.add(name, int(up), **labels, interface=interface)
        snapshot.add("tailwatch_infiniband_unreadable_files", seen.unreadable, **labels)
        return snapshot

    def add_to(self, snapshot: Snapshot) -> None:
        seen = self.seen
        seen.counters.add_to(snapshot)
        if seen.steady is not None:
            snapshot.include(seen.steady)

    def close(self) -> None:
        self._close_files()
        self._found = self._opened = None

    def _close_files(self) -> None:
        self._files.close()
        self._states.close()
        self._files = CounterFiles()
        self._states = OpenFiles(())
        self._link_layers = {}
        self._watched = None


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
