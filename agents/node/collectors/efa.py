"""The source `efa`: the counters of AWS Elastic Fabric Adapters.

Contract: a device is EFA by its driver, else by vendor and device id, never by its name. Its port
counters and its driver counters are two parts, because the first ask the device and the second do
not: with a dead admin queue `<device>` is down while `<device>/driver` still tells why. Old and new
layouts of hw_counters are read. A counter of something the instance type's hardware cannot do reads
0 for ever and is left out. Nothing is believed of `state`, `phys_state` and `rate`, which the
driver makes up; the line rate and how many devices there should be come from the instance type.

Cost: reading a port's counters makes the driver send up to 5 admin commands, once however many
files are read within its 10 ms `lifespan`. A read that fails stops at its first file: a dead device
is asked once an attempt, and less and less often. Driver counters cost no command.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tailwatch.agents.node.collectors.base import (
    NodeConfig,
    Part,
    ResetWatch,
    SourceError,
    register,
)
from tailwatch.agents.node.pci import Place, gpus, interfaces, mac_of_gid, nearest
from tailwatch.agents.node.sysfs import OpenFile, attribute, identity, names_in
from tailwatch.catalogue.efa import DEVICE_COUNTERS, PORT_COUNTERS, RESOURCE_ERRORS
from tailwatch.exposition import Snapshot, series
from tailwatch.instances import Instance, instance, this_instance

_VENDOR = "0x1d0f"
_DEVICE_PREFIX = "0xefa"
_KNOWN = frozenset({*PORT_COUNTERS, *DEVICE_COUNTERS, *RESOURCE_ERRORS})
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
    """The counter files of one directory, each with its metric and series."""

    def __init__(
        self, key: str, device: str, port: str, folder: Path, node: str, wanted: frozenset[str]
    ) -> None:
        self.key = key
        self.resets = ResetWatch()
        self._folder = folder
        self._wanted = wanted
        self._port = port
        self._labels = {"node": node, "device": device}
        self._identity: tuple[int, int] | None = None
        self._files: list[tuple[str, str, OpenFile]] = []
        self._values: tuple[tuple[str, str, int], ...] = ()

    def read(self) -> None:
        found = identity(self._folder)
        if found != self._identity:
            self._open(found)
        try:
            read = [(metric, text, file.read()) for metric, text, file in self._files]
        except OSError:
            # What is open may belong to a driver that is gone.
            self.close()
            raise
        values = tuple((metric, text, v) for metric, text, v in read if v is not None)
        self.resets.see({text: value for _, text, value in values})
        self._values = values

    def _open(self, found: tuple[int, int]) -> None:
        self.close()
        for name in names_in(self._folder):
            if name in self._wanted:
                metric, labels = self._described(name)
                file = OpenFile(self._folder / name)
                self._files.append((metric, series(metric, **labels), file))
        if not self._files:
            raise SourceError("empty", f"{self._folder}: no counter that is known")
        self._identity = found

    def _described(self, file: str) -> tuple[str, dict[str, str]]:
        """Return metric and labels of a file."""
        if file in PORT_COUNTERS:
            return PORT_COUNTERS[file], {**self._labels, "port": self._port}
        if file in DEVICE_COUNTERS:
            return DEVICE_COUNTERS[file], self._labels
        operation = {"operation": RESOURCE_ERRORS[file]}
        return "tailwatch_efa_resource_errors_total", {**self._labels, **operation}

    def add_to(self, snapshot: Snapshot) -> None:
        for metric, text, value in self._values:
            snapshot.put(metric, text, value)

    def close(self) -> None:
        for _, _, file in self._files:
            file.close()
        self._files = []
        self._identity = None


class _Device:
    """What discovery knows of one device."""

    def __init__(self, name: str, found: tuple[int, int], info: dict[str, str]) -> None:
        self.name = name
        self.identity = found
        self.info = info
        self.parts: dict[str, _Counters] = {}


@register
class EfaCollector:
    """Finds the EFA devices of a node."""

    name: ClassVar[str] = "efa"
    interval: ClassVar[float] = 1.0
    deadline: ClassVar[float] = 2.0

    def __init__(self, config: NodeConfig) -> None:
        self._node = config.node
        self._sysfs = config.sysfs
        self._class = config.sysfs / "class/infiniband"
        self._instance = instance(config.instance_type or this_instance(config.sysfs))
        self._wanted = _wanted(self._instance)
        self._devices: dict[str, _Device] = {}
        self._looked = False
        self._present: tuple[_Device, ...] = ()

    def discover(self) -> Sequence[Part]:
        try:
            names = names_in(self._class)
        except FileNotFoundError:
            names = []
        present = []
        for name in names:
            device = self._device(name)
            if device is not None:
                present.append(device)
        self._present = tuple(present)
        self._looked = True
        return [part for device in present for part in device.parts.values()]

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
            fresh = _Device(name, found, self._info(entry, place))
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

    def _counters(self, key: str, device: str, port: str, folder: Path) -> _Counters:
        return _Counters(key, device, port, folder, self._node, self._wanted)

    def _info(self, entry: Path, place: Place) -> dict[str, str]:
        mac = mac_of_gid(attribute(entry / "ports/1/gids/0"))
        return {
            "pci_bus_id": place.pci,
            "numa_node": place.numa,
            "gpu_pci_bus_ids": ",".join(nearest(place, gpus(self._sysfs))),
            "interface": interfaces(self._sysfs).get(mac, "") if mac else "",
            "mac": mac,
            "driver_version": attribute(self._sysfs / "module/efa/version"),
        }

    def add_to(self, snapshot: Snapshot) -> None:
        if not self._looked:
            return
        node, whole = self._node, self._instance
        snapshot.add("tailwatch_efa_devices", len(self._present), node=node)
        if whole is not None:
            snapshot.add("tailwatch_efa_expected_devices", whole.efa, node=node)
        for device in self._present:
            labels = {"node": node, "device": device.name}
            snapshot.add("tailwatch_efa_device_info", 1, **labels, **device.info)
            if whole is not None and whole.efa_gigabits is not None:
                rate = whole.efa_gigabits * 125_000_000
                snapshot.add("tailwatch_efa_line_rate_bytes_per_second", rate, **labels)

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
