"""The source `infiniband`: InfiniBand and RoCE devices (mlx5, mlx4, bnxt, irdma, hfi1).

Contract: every RDMA device that is no EFA, each port for itself. Words of the data counters become
bytes. A counter that sticks at its maximum is marked; one of bytes or packets is then left out,
because its value says nothing. A file that gives an error while others read is left alone for an
hour, so that the driver does not fill the kernel log; when nothing reads the device is down.

Cost: one pread a counter and 3 small files a port; for some drivers a firmware command a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tailwatch.agents.node.base import NodeConfig, Part, register
from tailwatch.agents.node.collectors.efa import is_efa
from tailwatch.agents.node.pci import Place, gpus
from tailwatch.agents.node.rdma import ACTIVE, DeviceSeen, RdmaDevice
from tailwatch.agents.node.sysfs import attribute, identity, names_in
from tailwatch.exposition import Snapshot


class _Device:
    """A device, what is known of it once and for all, and its part."""

    def __init__(self, entry: Path, found: tuple[int, int], part: RdmaDevice) -> None:
        self.place = Place.of(entry / "device")
        self.identity = found
        self.part = part
        self.info = {
            "pci_bus_id": self.place.pci,
            "numa_node": self.place.numa,
            "driver": self.place.driver,
            "firmware": attribute(entry / "fw_ver"),
            "hca_type": attribute(entry / "hca_type"),
            "board_id": attribute(entry / "board_id"),
        }
        self.virtual = (entry / "device/physfn").exists()


@register
class InfinibandCollector:
    """Finds the RDMA devices that are no EFA, and knows which ports somebody would miss."""

    name: ClassVar[str] = "infiniband"
    interval: ClassVar[float] = 1.0
    deadline: ClassVar[float] = 2.0

    def __init__(self, config: NodeConfig) -> None:
        self._node = config.node
        self._load = config.load
        self._sysfs = config.sysfs
        self._class = config.sysfs / "class/infiniband"
        self._devices: dict[str, _Device] = {}
        self._present: tuple[tuple[_Device, str], ...] = ()
        self._looked = False
        self._shown = Snapshot()
        self._shown_for: object = None

    def discover(self) -> Sequence[Part]:
        try:
            names = names_in(self._class)
        except FileNotFoundError:
            names = []
        devices = [device for name in names if (device := self._device(name)) is not None]
        ours = [device for device in devices if not is_efa(device.place)]
        near_gpus = {gpu.numa for gpu in gpus(self._sysfs)} - {""}
        with_efa = len(ours) < len(devices)
        self._present = tuple((device, _role(device, near_gpus, with_efa)) for device in ours)
        self._looked = True
        return [device.part for device in ours]

    def _device(self, name: str) -> _Device | None:
        entry = self._class / name
        try:
            found = identity(entry)
        except OSError:
            return None
        known = self._devices.get(name)
        if known is None or known.identity != found:
            # The same part, so that counters which start anew are seen as a reset.
            part = known.part if known else RdmaDevice(entry, self._node, self._load)
            known = self._devices[name] = _Device(entry, found, part)
        known.part.look()
        return known

    def add_to(self, snapshot: Snapshot) -> None:
        if not self._looked:
            return
        present = self._present
        ports = [device.part.seen.ports for device, _ in present]
        if (present, ports) != self._shown_for:
            self._shown = self._show(present)
            self._shown_for = present, ports
        snapshot.include(self._shown)

    def _show(self, present: tuple[tuple[_Device, str], ...]) -> Snapshot:
        snapshot = Snapshot()
        snapshot.add("tailwatch_infiniband_devices", len(present), node=self._node)
        for device, role in present:
            labels = {"node": self._node, "device": device.part.key}
            snapshot.add("tailwatch_infiniband_device_info", 1, **labels, **device.info, role=role)
        cards = [(d.part.key, d.part.seen, role == "compute") for d, role in present]
        for name, port, expected in expected_active(cards):
            snapshot.add(
                "tailwatch_infiniband_port_expected_active",
                int(expected),
                node=self._node,
                device=name,
                port=port,
            )
        return snapshot

    def close(self) -> None:
        """Do nothing: the parts hold all there is."""


def _role(device: _Device, near_gpus: set[str], with_efa: bool) -> str:
    if device.virtual:
        return "virtual"
    away = bool(near_gpus) and device.place.numa != "" and device.place.numa not in near_gpus
    return "management" if with_efa or away else "compute"


def expected_active(
    cards: Sequence[tuple[str, DeviceSeen, bool]],
) -> list[tuple[str, str, bool]]:
    """Return device, port and whether somebody would miss it when it is not active.

    A port that was active before is missed. One that never was is missed when its card has fewer
    active ports than most cards with as many ports: those without a cable by design are alike.

    Args:
        cards: name, what was last seen of it, whether it carries the traffic of the job.
    """
    active = {
        name: sum(1 for port in seen.ports if port.state == ACTIVE)
        for name, seen, compute in cards
        if compute and seen.ports
    }
    usual: dict[int, int] = {}
    for size in {len(seen.ports) for name, seen, _ in cards if name in active}:
        alike = [
            active[name] for name, seen, _ in cards if name in active and len(seen.ports) == size
        ]
        (count, times), *others = Counter(alike).most_common()
        # Between two counts that are as frequent neither is what is usual.
        if len(alike) > 1 and not (others and others[0][1] == times):
            usual[size] = count
    found = []
    for name, seen, compute in cards:
        for port in seen.ports:
            behind = active.get(name, 0) < usual.get(len(seen.ports), 0)
            missed = compute and (port.was_active or (name in active and behind))
            found.append((name, port.port, missed))
    return found
