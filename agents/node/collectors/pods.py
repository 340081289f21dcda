"""The source `pods`: which pod holds which device, as info metrics to join on the device.

Contract: a pod that has finished loses its devices at the next read, also where kubelet still lists
it; a look-up that fails says so in `tailwatch_pod_attribution_up` and never makes a device look
unallocated. A device that several pods share has one series for each. Traffic and utilisation carry
no pod labels: a sum over them would count shared devices several times. A claim whose driver names
its devices by neither a minor number, a PCI address nor an interface is looked up in the driver's
ResourceSlices.

Cannot see: the phase of a pod (only whether it has a cgroup, where `/var/log/pods` is mounted).

Cost: one call to kubelet every 10 s; see `podresources.slices` for claims.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from tailwatch.agents.node.base import NodeConfig, Part, register
from tailwatch.agents.node.cgroups import POD_LOGS, PodName, PodStates
from tailwatch.agents.node.podresources.client import PodResources
from tailwatch.agents.node.podresources.device_id import is_watched, parse_device_id
from tailwatch.agents.node.podresources.messages import Held, Pod
from tailwatch.agents.node.podresources.slices import ACCOUNT, DeviceName, Slices
from tailwatch.agents.node.sysfs import attribute
from tailwatch.exposition import Snapshot

_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_UUID = re.compile(r"^GPU UUID:\s*(GPU-\S+)", re.MULTILINE)
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_INTERFACE = re.compile(r"[\w-][\w.-]{0,63}")
_MOST_SERIES = 1024


class GpuOwner(NamedTuple):
    """A container that holds a GPU or a part of one."""

    uuid: str
    gpu_instance: str
    mig_uuid: str
    resource: str
    namespace: str
    pod: str
    container: str


class _GpuPart(NamedTuple):
    """A GPU or a part of one: a GPU instance by its id, or a MIG device by its UUID."""

    uuid: str
    gpu_instance: str
    mig_uuid: str


class EfaOwner(NamedTuple):
    """A container that holds an EFA device."""

    device: str
    resource: str
    namespace: str
    pod: str
    container: str


class _Mapping(NamedTuple):
    """Everything one read found."""

    gpus: tuple[GpuOwner, ...]
    efas: tuple[EfaOwner, ...]
    unmapped: tuple[tuple[str, int], ...]
    dropped: int


class _Kubelet:
    """The part that asks kubelet."""

    key = ""

    def __init__(self, config: NodeConfig, pod_logs: Path, slices: Slices | None) -> None:
        self._config = config
        self._logs = pod_logs
        self._slices = slices
        self._gpus = _Gpus(config.procfs)
        self._client = PodResources(config.podresources)
        self.succeeded_at: float | None = None
        self.failed = False
        self._mapping: _Mapping | None = None

    def read(self) -> None:
        try:
            self._mapping = self._look()
        except BaseException:
            self.failed = True
            raise
        self.succeeded_at = time.monotonic()
        self.failed = False

    def _look(self) -> _Mapping:
        listed = self._client.list()
        states = PodStates(self._config.sysfs, self._logs)
        pods = [p for p in listed if not states.finished(PodName(p.namespace, p.name))]
        return self._map(self._settle(pods))

    def _settle(self, pods: list[Pod]) -> list[Pod]:
        """Leave out pods that kubelet lists only because nobody has taken their device since.

        A device that the plug-in gave out whole has one owner. Where two are listed, kubelet is
        asked for each of them alone.
        """
        owners: dict[str, list[Pod]] = {}
        for pod in pods:
            for container in pod.containers:
                for held in container.devices:
                    what = parse_device_id(held.resource, held.device)
                    if (
                        what
                        and is_watched(held.resource)
                        and not held.claim
                        and what.replica is None
                    ):
                        known = owners.setdefault(held.device, [])
                        if pod not in known:
                            known.append(pod)
        doubtful = {pod for known in owners.values() if len(known) > 1 for pod in known}
        gone = {p for p in doubtful if self._client.get(p.namespace, p.name) is None}
        return [pod for pod in pods if pod not in gone]

    def _map(self, pods: list[Pod]) -> _Mapping:
        self._gpus.look()
        gpus: set[GpuOwner] = set()
        efas: set[EfaOwner] = set()
        unmapped: dict[str, int] = {}
        wanted: set[DeviceName] = set()
        for pod in pods:
            for container in pod.containers:
                for held in container.devices:
                    if not held.device or not is_watched(held.resource):
                        continue
                    found = self._device(held)
                    if found is None:
                        found = self._claimed(held, wanted)
                    owner = (held.resource, pod.namespace, pod.name, container.name)
                    if isinstance(found, _GpuPart):
                        gpus.add(GpuOwner(*found, *owner))
                    elif found is not None:
                        efas.add(EfaOwner(found, *owner))
                    else:
                        unmapped[held.resource] = unmapped.get(held.resource, 0) + 1
        if self._slices is not None:
            self._slices.wanted = frozenset(wanted)
        dropped = max(len(gpus) - _MOST_SERIES, 0) + max(len(efas) - _MOST_SERIES, 0)
        return _Mapping(
            tuple(sorted(gpus)[:_MOST_SERIES]),
            tuple(sorted(efas)[:_MOST_SERIES]),
            tuple(sorted(unmapped.items())),
            dropped,
        )

    def _device(self, held: Held) -> _GpuPart | str | None:
        """Return what an id says by itself: a GPU, the name of an RDMA device, or nothing."""
        what = parse_device_id(held.resource, held.device)
        if what is None:
            return None
        if what.form == "gpu":
            uuid = what.base if what.base.startswith("GPU-") else f"GPU-{what.base}"
            return _GpuPart(uuid, what.gpu_instance, "")
        if what.form == "mig":
            return _GpuPart("", "", what.base)
        if what.form == "minor":
            uuid = self._gpus.by_minor.get(what.base, "")
            return _GpuPart(uuid, what.gpu_instance, "") if uuid else None
        if what.form == "pci":
            return self._rdma_behind(self._config.sysfs / "bus/pci/devices" / what.base)
        if what.form == "efa":
            # A device plug-in gives RDMA devices out; a claim may name any interface.
            return self._rdma_named(what.base) if held.claim else what.base
        return None

    def _claimed(self, held: Held, wanted: set[DeviceName]) -> _GpuPart | str | None:
        """Return what the driver of a claim has published of a device."""
        if self._slices is None or not held.claim:
            return None
        name = DeviceName(held.resource, held.pool, held.device)
        wanted.add(name)
        said = self._slices.devices.get(name)
        if said is None:
            return None
        if said.uuid.startswith("MIG-"):
            return _GpuPart("", "", said.uuid)
        uuid = said.uuid if said.uuid.startswith("GPU-") else self._gpus.by_pci.get(said.pci, "")
        if uuid:
            return _GpuPart(uuid, "", "")
        for name_of_rdma in filter(None, (said.rdma, said.interface)):
            if found := self._rdma_named(name_of_rdma):
                return found
        behind = self._config.sysfs / "bus/pci/devices" / said.pci
        return self._rdma_behind(behind) if _PCI_ADDRESS.fullmatch(said.pci) else None

    def _rdma_named(self, name: str) -> str | None:
        """Return the RDMA device of that name, or of the interface of that name."""
        if not _INTERFACE.fullmatch(name):
            return None
        if (self._config.sysfs / "class/infiniband" / name).exists():
            return name
        return self._rdma_behind(self._config.sysfs / "class/net" / name / "device")

    @staticmethod
    def _rdma_behind(device: Path) -> str | None:
        try:
            return min(os.listdir(device / "infiniband"), default=None)
        except OSError:
            return None

    def add_to(self, snapshot: Snapshot) -> None:
        mapping, node = self._mapping, self._config.node
        if mapping is None:
            return
        for gpu in mapping.gpus:
            snapshot.add("tailwatch_gpu_pod_info", 1, node=node, **gpu._asdict())
        for efa in mapping.efas:
            snapshot.add("tailwatch_efa_pod_info", 1, node=node, **efa._asdict())
        for resource, count in mapping.unmapped:
            snapshot.add("tailwatch_pod_devices_unmapped", count, node=node, resource=resource)
        snapshot.add("tailwatch_pod_series_dropped", mapping.dropped, node=node)

    def close(self) -> None:
        self._client.close()


class _Gpus:
    """The UUIDs of the GPUs as the driver tells them, by minor number and by PCI address."""

    def __init__(self, procfs: Path) -> None:
        self._folder = procfs / "driver/nvidia/gpus"
        self.by_minor: dict[str, str] = {}
        self.by_pci: dict[str, str] = {}

    def look(self) -> None:
        """Read the driver's files anew."""
        self.by_minor, self.by_pci = {}, {}
        for path in self._folder.glob("*/information"):
            text = attribute(path)
            minor, uuid = _MINOR.search(text), _UUID.search(text)
            if uuid:
                self.by_pci[path.parent.name] = uuid[1]
            if uuid and minor:
                self.by_minor[minor[1]] = uuid[1]


@register
class PodsCollector:
    """Maps devices to pods."""

    name: ClassVar[str] = "pods"
    interval: ClassVar[float] = 10.0
    deadline: ClassVar[float] = 5.0

    def __init__(
        self, config: NodeConfig, *, pod_logs: Path = POD_LOGS, account: Path = ACCOUNT
    ) -> None:
        self._config = config
        self._slices = Slices.of_cluster(config.node, account)
        self._kubelet = _Kubelet(config, pod_logs, self._slices)

    def discover(self) -> Sequence[Part]:
        # A node without kubelet is no node whose kubelet is sick.
        if self._config.podresources.parent.is_dir():
            return (self._kubelet,) if self._slices is None else (self._kubelet, self._slices)
        return ()

    def add_to(self, snapshot: Snapshot) -> None:
        kubelet, node = self._kubelet, self._config.node
        if kubelet.succeeded_at is None and not kubelet.failed:
            return
        snapshot.add("tailwatch_pod_attribution_up", int(not kubelet.failed), node=node)
        if kubelet.succeeded_at is not None:
            age = time.monotonic() - kubelet.succeeded_at
            snapshot.add("tailwatch_pod_attribution_age_seconds", age, node=node)

    def close(self) -> None:
        """Do nothing: the channel closes with its part."""
