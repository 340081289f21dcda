"""The source `processes`: how much memory of each GPU the processes of each pod hold.

Contract: one part a GPU. A process belongs to the pod its cgroup names, and the pod has the name of
its log directory; a process of no known pod, or one that has ended by then, counts under the empty
pod, so the sum over pods is all that NVML knows. Process ids are the host's or are not used: in a
process id namespace of its own the agent maps none and says so, because the same number may be
another process there. What NVML does not know of a process is no memory and no number.

Cost: one NVML call a GPU and minute, which holds a lock of the driver for up to 5 ms; one small
file a process. It is a source of its own so that it can be switched off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tailwatch.agents.node.base import NodeConfig, register
from tailwatch.agents.node.cgroups import (
    NO_POD,
    POD_LOGS,
    PodName,
    pod_names,
    pods_of_processes,
    sees_host_processes,
    uid_of_process,
)
from tailwatch.agents.node.nvml.calls import DeviceCalls
from tailwatch.agents.node.nvml.devices import DeviceList, Found
from tailwatch.agents.node.nvml.library import Library, leave, use
from tailwatch.agents.node.nvml.part import NvmlPart
from tailwatch.agents.node.nvml.reading import Sample
from tailwatch.agents.service import log
from tailwatch.exposition import Snapshot

_NO_NUMBER = (1 << 64) - 1
_NO_INSTANCE = (1 << 32) - 1


class GpuProcess(NamedTuple):
    """One process on a GPU; `gpu_instance` is "" outside of MIG, `memory` None where not known."""

    pid: int
    gpu_instance: str
    memory: int | None

    @classmethod
    def of(cls, info: Any) -> GpuProcess:
        """Return what a structure of NVML says."""
        size, instance = info.usedGpuMemory, info.gpuInstanceId
        return cls(
            pid=info.pid,
            gpu_instance="" if instance in (None, _NO_INSTANCE) else str(instance),
            memory=None if size in (None, _NO_NUMBER) else size,
        )


class Holding(NamedTuple):
    """What the processes of one pod hold of one GPU or GPU instance."""

    gpu_instance: str
    pod: PodName
    processes: int
    memory: int | None


def holdings(processes: Sequence[GpuProcess], pods: dict[int, PodName]) -> list[Holding]:
    """Return what each pod holds, in a stable order; processes of no pod count under `NO_POD`."""
    found: dict[tuple[str, PodName], list[int | None]] = {}
    for process in processes:
        pod = pods.get(process.pid, NO_POD)
        found.setdefault((process.gpu_instance, pod), []).append(process.memory)
    return [
        Holding(gi, pod, len(sizes), sum(known) if (known := _known(sizes)) else None)
        for (gi, pod), sizes in sorted(found.items())
    ]


def _known(sizes: Sequence[int | None]) -> list[int]:
    return [size for size in sizes if size is not None]


class _GpuProcesses(NvmlPart):
    """The processes of one GPU."""

    def __init__(self, library: Library, config: NodeConfig, found: Found, logs: Path) -> None:
        super().__init__(library, config.node, ProcessesCollector.name, found)
        self._procfs = config.procfs
        self._logs = logs
        self._listed: list[GpuProcess] = []
        self._holdings: list[Holding] = []

    def read_device(self, calls: DeviceCalls, slow: bool) -> list[Sample]:
        answer = calls.ask("nvmlDeviceGetComputeRunningProcesses")
        self._listed = [GpuProcess.of(info) for info in answer or ()]
        return []

    def read(self) -> None:
        super().read()
        pods: dict[int, PodName] = {}
        if self._listed and sees_host_processes(self._procfs):
            uids = {p.pid: uid_of_process(self._procfs, p.pid) for p in self._listed}
            pods = pods_of_processes(uids, pod_names(self._logs))
        self._holdings = holdings(self._listed, pods)

    def add_to(self, snapshot: Snapshot) -> None:
        super().add_to(snapshot)
        for held in self._holdings:
            labels = {
                "node": self._node,
                "uuid": self.found.uuid,
                "gpu_instance": held.gpu_instance,
                "namespace": held.pod.namespace,
                "pod": held.pod.name,
            }
            snapshot.add("tailwatch_gpu_pod_processes", held.processes, **labels)
            snapshot.add("tailwatch_gpu_pod_memory_bytes", held.memory, **labels)


@register
class ProcessesCollector:
    """Finds the GPUs whose processes are listed."""

    name: ClassVar[str] = "processes"
    interval: ClassVar[float] = 60.0
    deadline: ClassVar[float] = 2.0

    def __init__(self, config: NodeConfig, *, pod_logs: Path = POD_LOGS) -> None:
        self._config = config
        self._library = use(config.nvml_library, self)
        self._devices = DeviceList(
            self._library, lambda found: _GpuProcesses(self._library, config, found, pod_logs)
        )
        self._maps: bool | None = None

    def discover(self) -> Sequence[_GpuProcesses]:
        parts = self._devices.look()
        maps = sees_host_processes(self._config.procfs)
        if parts and not maps and self._maps is not False:
            log("source processes: without the host's process ids no process is mapped to a pod")
        self._maps = maps if parts else None
        return parts

    def add_to(self, snapshot: Snapshot) -> None:
        if self._maps is not None:
            name = "tailwatch_gpu_process_mapping_up"
            snapshot.add(name, int(self._maps), node=self._config.node)

    def close(self) -> None:
        leave(self._library, self)
