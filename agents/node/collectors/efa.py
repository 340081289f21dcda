"""The source `efa`: the counters of AWS Elastic Fabric Adapters.

Contract: a device is EFA by its driver, else by vendor and device id, never by its name. Its port
counters and its driver counters are two parts, because the first ask the device and the second do
not: with a dead admin queue `<device>` is down while `<device>/driver` still tells why. Old and new
layouts of hw_counters are read. A counter of something the instance type's hardware cannot do reads
0 for ever and is left out. Nothing is believed of `state`, `phys_state` and `rate`, which the
driver makes up; the line rate and how many devices there should be come from the instance type.

Cost: reading a port's counters makes the driver send up to 5 admin commands, once however many
files are read within its 10 ms `lifespan`. A read of a dead device stops at its first file: it is
asked once an attempt, and less and less often. Driver counters cost no command.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tailwatch.agents.node.base import (
    NodeConfig,
    Part,
    ResetWatch,
    SourceError,
    register,
)
from tailwatch.agents.node.counter_files import CounterFile, CounterFiles, Reading
from tailwatch.agents.node.fabric_load import FabricLoad
from tailwatch.agents.node.pci import Place, gpus, interfaces, mac_of_gid, nearest
from tailwatch.agents.node.sysfs import attribute, identity, names_in
from tailwatch.catalogue.efa import DEVICE_COUNTERS, PORT_COUNTERS, RESOURCE_ERRORS
from tailwatch.exposition import Snapshot, series
from tailwatch.instances import Instance, instance, this_instance

_VENDOR = "0x1d0f"
_DEVICE_PREFIX = "0xefa"
_KNOWN = frozenset({*PORT_COUNTERS, *DEVICE_COUNTERS, *RESOURCE_ERRORS})
_TRAFFIC = frozenset({"tx_bytes", "rx_bytes"})
_RDMA_WRITE = frozenset(name for name in PORT_COUNTERS if name.startswith("rdma_write_"))
_SRD = frozenset(
    name for name in PORT_COUNTERS if name.startswith(("retrans_", "unresp", "impair"))
)


def is_efa(place: Place) -> bool:
    """Whether a device is an EFA."""
    if place.driver:
        return place.driver == "efa"
    return place.vendor == _VENDOR and place.device.startswith(_DEVICE_PREFIX)


class _Counters:
    """The counters of one directory; `load` hears of the bytes they count."""

    def __init__(
        self, key: str, folder: Path, labels: dict[str, str], wanted: frozenset[str],
        load: FabricLoad,
    ) -> None:  # fmt: skip
        self.key = key
        self.resets = ResetWatch()
        self._folder = folder
        self._wanted = wanted
        self._labels = labels
        self._load = load
        self._found: tuple[int, int] | None = None
        self._opened: tuple[int, int] | None = None
        self._files: CounterFiles = CounterFiles()
        self._reading = Reading()
        self._unreadable = 0
        self._unreadable_series = series("tailwatch_efa_unreadable_files", **labels)

    def look(self) -> None:
        """Note which directory it is; when that is another one the next read opens its files."""
        with contextlib.suppress(OSError):
            self._found = identity(self._folder)

    def read(self) -> None:
        try:
            if self._found is None:
                self._found = identity(self._folder)
            if self._found != self._opened:
                self._open(self._found)
            reading = self._files.read(time.monotonic())
        except (OSError, SourceError):
            # The driver may be another one by the next time.
            self._found = None
            raise
        self.resets.see_row(reading.series, reading.values)
        traffic = reading.traffic()
        if traffic is not None:
            self._load.note(self.key, traffic)
        self._reading = reading
        self._unreadable = self._files.unreadable

    def _open(self, found: tuple[int, int]) -> None:
        self._files.close()
        files = [
            self._counter(self._folder / name)
            for name in names_in(self._folder)
            if name in self._wanted
        ]
        if not files:
            raise SourceError("empty", f"{self._folder}: no counter that is known")
        # One that fails is the device, one among others that read is not: two tell which.
        self._files = CounterFiles(files, patience=2)
        self._opened = found

    def _counter(self, path: Path) -> CounterFile:
        metric, labels = self._described(path.name)
        return CounterFile(path, series(metric, **labels), traffic=path.name in _TRAFFIC)

    def _described(self, file: str) -> tuple[str, dict[str, str]]:
        """Return metric and labels of a file."""
        if file in PORT_COUNTERS:
            return PORT_COUNTERS[file], self._labels
        of_device = {name: text for name, text in self._labels.items() if name != "port"}
        if file in DEVICE_COUNTERS:
            return DEVICE_COUNTERS[file], of_device
        operation = {"operation": RESOURCE_ERRORS[file]}
        return "tailwatch_efa_resource_errors_total", {**of_device, **operation}

    def add_to(self, snapshot: Snapshot) -> None:
        self._reading.add_to(snapshot)
        snapshot.put(self._unreadable_series, self._unreadable)

    def close(self) -> None:
        self._files.close()
        self._files = CounterFiles()
        self._found = self._opened = None


class _Device:
    """What discovery knows of one device: where it is, what it is called, and its parts."""

    def __init__(self, name: str, found: tuple[int, int], place: Place, near: list[str]) -> None:
        self.name = name
        self.identity = found
        self.place = place
        self.near = near
        self.mac = ""
        self.info: dict[str, str] = {}
        self.parts: dict[str, _Counters] = {}


@register
class EfaCollector:
    """Finds the EFA devices of a node."""

    name: ClassVar[str] = "efa"
    interval: ClassVar[float] = 1.0
    deadline: ClassVar[float] = 2.0

    def __init__(self, config: NodeConfig) -> None:
        self._node = config.node
        self._load = config.load
        self._sysfs = config.sysfs
        self._class = config.sysfs / "class/infiniband"
        self._instance = instance(config.instance_type or this_instance(config.sysfs))
        self._wanted = _wanted(self._instance)
        self._devices: dict[str, _Device] = {}
        self._shown = Snapshot()

    def discover(self) -> Sequence[Part]:
        try:
            names = names_in(self._class)
        except FileNotFoundError:
            names = []
        devices = [device for name in names if (device := self._device(name)) is not None]
        # An interface comes after its device, and may get another name: looked at every time.
        by_mac = interfaces(self._sysfs) if devices else {}
        for device in devices:
            device.info = self._info(device, by_mac)
        self._shown = self._show(devices)
        return [part for device in devices for part in device.parts.values()]

    def _device(self, name: str) -> _Device | None:
        entry = self._class / name
        try:
            found = identity(entry)
        except OSError:
            return None
        known = self._devices.get(name)
        if known is None or known.identity != found:
            place = Place.of(entry / "device")
            if not is_efa(place):
                return None
            fresh = _Device(name, found, place, nearest(place, gpus(self._sysfs)))
            # The parts stay the same objects, so a counter that starts anew is seen as a reset.
            fresh.parts = {} if known is None else known.parts
            known = self._devices[name] = fresh
        self._find_parts(entry, known)
        return known

    def _find_parts(self, entry: Path, device: _Device) -> None:
        parts = device.parts
        for port in _ports(entry):
            key = device.name if port == "1" else f"{device.name}/port{port}"
            if key not in parts:
                folder = entry / "ports" / port / "hw_counters"
                parts[key] = self._counters(key, device.name, port, folder)
        key = f"{device.name}/driver"
        if key not in parts and (entry / "hw_counters").is_dir():
            parts[key] = self._counters(key, device.name, "", entry / "hw_counters")
        for part in parts.values():
            part.look()

    def _counters(self, key: str, device: str, port: str, folder: Path) -> _Counters:
        labels = {"node": self._node, "device": device, "port": port}
        return _Counters(key, folder, labels, self._wanted, self._load)

    def _info(self, device: _Device, by_mac: dict[str, str]) -> dict[str, str]:
        if not device.mac:
            device.mac = mac_of_gid(attribute(self._class / device.name / "ports/1/gids/0"))
        return {
            "pci_bus_id": device.place.pci,
            "numa_node": device.place.numa,
            "gpu_pci_bus_ids": ",".join(device.near),
            "interface": by_mac.get(device.mac, ""),
            "mac": device.mac,
            "driver_version": attribute(self._sysfs / "module/efa/version"),
        }

    def _show(self, devices: Sequence[_Device]) -> Snapshot:
        snapshot, node, whole = Snapshot(), self._node, self._instance
        snapshot.add("tailwatch_efa_devices", len(devices), node=node)
        if whole is not None:
            snapshot.add("tailwatch_efa_expected_devices", whole.efa, node=node)
        for device in devices:
            labels = {"node": node, "device": device.name}
            snapshot.add("tailwatch_efa_device_info", 1, **labels, **device.info)
            if whole is not None and whole.efa_gigabits is not None:
                rate = whole.efa_gigabits * 125_000_000
                snapshot.add("tailwatch_efa_line_rate_bytes_per_second", rate, **labels)
        return snapshot

    def add_to(self, snapshot: Snapshot) -> None:
        snapshot.include(self._shown)

    def close(self) -> None:
        """Do nothing: the parts hold all there is."""


def _wanted(whole: Instance | None) -> frozenset[str]:
    """Return the counters to believe: what the hardware lacks reads 0, as if it were idle."""
    wanted = _KNOWN
    if whole is not None and whole.efa_rdma_write is False:
        wanted -= _RDMA_WRITE
    if whole is not None and whole.efa_srd_counters is False:
        wanted -= _SRD
    return wanted


def _ports(entry: Path) -> list[str]:
    """Return the ports of a device; port 1 when they cannot be listed, so that its read says so."""
    try:
        return [port for port in names_in(entry / "ports") if port.isdecimal()] or ["1"]
    except OSError:
        return ["1"]
