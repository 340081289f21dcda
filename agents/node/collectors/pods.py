"""The source `pods`: which pod holds which device, as info metrics to join on the device.

Contract: a pod that has finished loses its devices at the next read, also where kubelet still lists
it; a look-up that fails says so in `tailwatch_pod_attribution_up` and never makes a device look
unallocated. A device that several pods share has one series for each. Traffic and utilisation carry
no pod labels: a sum over them would count shared devices several times.

Cannot see: the phase of a pod (only whether it has a cgroup, where `/var/log/pods` is mounted), and
which GPU a claim of a driver means that names its devices by something else than a minor number.

Cost: one call to kubelet every 10 s.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from tailwatch.agents.node.cgroups import POD_LOGS, PodName, PodStates
from tailwatch.agents.node.collectors.base import NodeConfig, Part, register
from tailwatch.agents.node.podresources.client import PodResources
from tailwatch.agents.node.podresources.device_id import DeviceId, is_watched, parse_device_id
from tailwatch.agents.node.podresources.messages import Pod
from tailwatch.exposition import Snapshot

_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_UUID = re.compile(r"^GPU UUID:\s*(GPU-\S+)", re.MULTILINE)
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

    def __init__(self, config: NodeConfig, pod_logs: Path) -> None:
        self._config = config
        self._logs = pod_logs
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
        minors: dict[str, str] | None = None
        gpus: set[GpuOwner] = set()
        efas: set[EfaOwner] = set()
        unmapped: dict[str, int] = {}
        for pod in pods:
            for container in pod.containers:
                for held in container.devices:
                    what = parse_device_id(held.resource, held.device)
                    if what is None or not is_watched(held.resource):
                        continue
                    owner = (held.resource, pod.namespace, pod.name, container.name)
                    if what.form == "minor" and minors is None:
                        minors = _gpus_by_minor(self._config.procfs)
                    gpu = _gpu(what, minors or {})
                    efa = self._efa(what)
                    if gpu is not None:
                        gpus.add(GpuOwner(*gpu, *owner))
                    elif efa:
                        efas.add(EfaOwner(efa, *owner))
                    else:
                        unmapped[held.resource] = unmapped.get(held.resource, 0) + 1
        dropped = max(len(gpus) - _MOST_SERIES, 0) + max(len(efas) - _MOST_SERIES, 0)
        return _Mapping(
            tuple(sorted(gpus)[:_MOST_SERIES]),
            tuple(sorted(efas)[:_MOST_SERIES]),
            tuple(sorted(unmapped.items())),
            dropped,
        )

    def _efa(self, what: DeviceId) -> str:
        if what.form == "efa":
            return what.base
        if what.form != "pci":
            return ""
        try:
            names = os.listdir(self._config.sysfs / "bus/pci/devices" / what.base / "infiniband")
        except OSError:
            return ""
        return min(names, default="")

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


def _gpu(what: DeviceId, minors: dict[str, str]) -> tuple[str, str, str] | None:
    """Return `(uuid, gpu_instance, mig_uuid)`; None when it is no GPU or not known which."""
    if what.form == "gpu":
        uuid = what.base if what.base.startswith("GPU-") else f"GPU-{what.base}"
        return uuid, what.gpu_instance, ""
    if what.form == "mig":
        return "", "", what.base
    if what.form == "minor" and what.base in minors:
        return minors[what.base], what.gpu_instance, ""
    return None


def _gpus_by_minor(procfs: Path) -> dict[str, str]:
    """Return the UUID of each GPU by the number of its device file, as the driver tells it."""
    found = {}
    for path in (procfs / "driver/nvidia/gpus").glob("*/information"):
        try:
            text = path.read_text()
        except OSError:
            continue
        minor, uuid = _MINOR.search(text), _UUID.search(text)
        if minor and uuid:
            found[minor[1]] = uuid[1]
    return found


@register
class PodsCollector:
    """Maps devices to pods."""

    name: ClassVar[str] = "pods"
    interval: ClassVar[float] = 10.0
    deadline: ClassVar[float] = 5.0

    def __init__(self, config: NodeConfig, *, pod_logs: Path = POD_LOGS) -> None:
        self._config = config
        self._kubelet = _Kubelet(config, pod_logs)

    def discover(self) -> Sequence[Part]:
        # A node without kubelet is no node whose kubelet is sick.
        if self._config.podresources.parent.is_dir():
            return (self._kubelet,)
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
