"""The source `gpu`: what NVML knows of each GPU, and which GPUs it cannot reach.

Contract: one part a GPU. A value that a GPU does not support, or refuses, is absent; the rest of
it stays. A GPU that is lost has no values, and `tailwatch_gpu_lost` 1 under the identity it had. In
MIG mode a GPU has no utilisation (NVML knows none) and each GPU instance its own memory and
profiling counters, once. Profiling counters that contradict utilisation and power are left out.
NVML never tells which device holds the driver: `tailwatch_nvml_blocked_seconds` names the call that
has been in it longest.

Cost: about 12 NVML calls a GPU and read, 20 every sixth read; no process lists, no PCIe throughput
(20 ms each), no sleep. Read every 5 s: counters lose nothing by it, and profiling counters are
averages over the whole interval.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from tailwatch.agents.node.base import NodeConfig, SourceError, register
from tailwatch.agents.node.nvml import gpm, reading
from tailwatch.agents.node.nvml.calls import DeviceCalls
from tailwatch.agents.node.nvml.devices import DeviceList, Found, bus_id
from tailwatch.agents.node.nvml.library import Library, leave, use
from tailwatch.agents.node.nvml.mig import MigInstance, instances
from tailwatch.agents.node.nvml.part import NvmlPart
from tailwatch.agents.node.nvml.reading import Sample
from tailwatch.exposition import Snapshot

_FRESH_INTERVALS = 3


class GpuPart(NvmlPart):
    """What NVML knows of one GPU."""

    def __init__(self, library: Library, node: str, found: Found) -> None:
        super().__init__(library, node, GpuCollector.name, found)
        self.pci_bus_id = ""
        self._slow: list[Sample] = []
        self._mig: list[MigInstance] = []
        self._power_limit: float | None = None
        self._gpm: dict[int | None, gpm.GpmSampler] = {}
        self._check = gpm.ProfilingCheck()

    def read(self) -> None:
        try:
            super().read()
        except SourceError as error:
            self.library.note(self.key, error.code)
            raise
        self.library.note(self.key, None)

    def read_device(self, calls: DeviceCalls, slow: bool) -> list[Sample]:
        if slow:
            self._slow = self._read_slow(calls)
        values = calls.fields([*(rule.field for rule in reading.FAST), *reading.POWER])
        watts = reading.power_watts(values)
        found = [*self._slow, *reading.from_fields(reading.FAST, values), *self._plain(calls)]
        if watts is not None:
            found.append(Sample("tailwatch_gpu_power_watts", watts))
        if self._mig_mode:
            return found + self._instances(calls)
        utilization = self._utilization(calls, found)
        return found + self._profiling(calls, utilization, watts)

    def _read_slow(self, calls: DeviceCalls) -> list[Sample]:
        """What changes rarely: identity, limits, error counts, the fabric, the instances."""
        mode = self.in_mig_mode(calls)
        values = calls.fields(rule.field for rule in reading.SLOW)
        limit = values.get(reading.POWER_LIMIT)
        self._power_limit = limit / 1000 if limit is not None else None
        found = [*self._identity(calls), *reading.from_fields(reading.SLOW, values)]
        if mode is not None:
            found.append(Sample("tailwatch_gpu_mig_mode", int(mode)))
        self._mig = instances(calls) if mode else []
        for instance in self._mig:
            labels = (
                ("gpu_instance", str(instance.gpu_instance)),
                ("compute_instance", str(instance.compute_instance)),
                ("mig_uuid", instance.uuid),
                ("profile", instance.profile),
            )
            found.append(Sample("tailwatch_gpu_instance_info", 1, labels))
        found += self._by_kind(calls, "nvmlDeviceGetMaxClockInfo", "clock", reading.CLOCKS_MAX)
        if calls.ask("nvmlDeviceGetMarginTemperature") is None:
            found += self._by_kind(
                calls, "nvmlDeviceGetTemperatureThreshold", "limit", reading.THRESHOLDS
            )
        return found + self._fabric(calls)

    def _identity(self, calls: DeviceCalls) -> list[Sample]:
        pci = calls.ask("nvmlDeviceGetPciInfo")
        if pci is not None:
            self.pci_bus_id = bus_id(pci.busId)
        labels = {
            "index": str(self.found.number),
            "name": calls.ask("nvmlDeviceGetName") or "",
            "serial": calls.ask("nvmlDeviceGetSerial") or "",
            "pci_bus_id": self.pci_bus_id,
            "driver_version": self.library.driver_version(),
        }
        return [Sample("tailwatch_gpu_info", 1, tuple(labels.items()))]

    def _by_kind(
        self, calls: DeviceCalls, call: str, label: str, kinds: reading.Kinds
    ) -> list[Sample]:
        found = []
        for kind, number in kinds.numbers.items():
            answer = calls.ask(call, number, memo=number)
            if answer is not None:
                found.append(Sample(kinds.name, answer * kinds.factor, ((label, kind),)))
        return found

    def _fabric(self, calls: DeviceCalls) -> list[Sample]:
        info = self.library.c_nvmlGpuFabricInfo_v2_t()
        if calls.ask("nvmlDeviceGetGpuFabricInfoV", self.library.byref(info)) is None:
            return []
        return reading.from_fabric(info)

    def _plain(self, calls: DeviceCalls) -> list[Sample]:
        found = self._by_kind(calls, "nvmlDeviceGetClockInfo", "clock", reading.CLOCKS)
        memory = calls.ask("nvmlDeviceGetMemoryInfo", self.library.nvmlMemory_v2)
        if memory is not None:
            found += reading.from_memory(memory, "gpu")
        celsius = calls.ask("nvmlDeviceGetTemperatureV", 0)
        if celsius is None:
            celsius = calls.ask("nvmlDeviceGetTemperature", 0)
        if celsius is not None:
            sensor = (("sensor", "gpu"),)
            found.append(Sample("tailwatch_gpu_temperature_celsius", celsius, sensor))
        margin = calls.ask("nvmlDeviceGetMarginTemperature")
        if margin is not None:
            found.append(Sample("tailwatch_gpu_temperature_margin_celsius", margin))
        return found

    def _utilization(self, calls: DeviceCalls, found: list[Sample]) -> float | None:
        answer = calls.ask("nvmlDeviceGetUtilizationRates")
        if answer is None:
            return None
        gpu, memory = reading.ratio(answer.gpu), reading.ratio(answer.memory)
        for name, share in (("utilization", gpu), ("memory_utilization", memory)):
            if share is not None:
                found.append(Sample(f"tailwatch_gpu_{name}_ratio", share))
        return gpu

    def _sampler(
        self, calls: DeviceCalls, gpu_instance: int | None, metrics: tuple[int, ...]
    ) -> gpm.GpmSampler:
        if gpu_instance not in self._gpm:
            self._gpm[gpu_instance] = gpm.GpmSampler(calls, metrics, gpu_instance)
        return self._gpm[gpu_instance]

    def _profiling(
        self, calls: DeviceCalls, utilization: float | None, watts: float | None
    ) -> list[Sample]:
        sampler = self._sampler(calls, None, reading.GPM_OF_GPU)
        values = sampler.read()
        contradicts = self._check.contradicts(
            utilization, watts, self._power_limit, values.get(gpm.GRAPHICS)
        )
        if contradicts:
            sampler.restart()
        found = [] if contradicts else reading.from_gpm(values, "gpu")
        if values or self._check.stuck:
            found.append(Sample("tailwatch_gpu_profiling_stuck", int(self._check.stuck)))
        return found

    def _instances(self, calls: DeviceCalls) -> list[Sample]:
        found: list[Sample] = []
        by_gi: dict[int, MigInstance] = {}
        for instance in self._mig:
            by_gi.setdefault(instance.gpu_instance, instance)
        for gi, instance in by_gi.items():
            labels = (("gpu_instance", str(gi)),)
            memory = calls.ask_of(
                instance.handle, "nvmlDeviceGetMemoryInfo", self.library.nvmlMemory_v2, memo=gi
            )
            if memory is not None:
                found += reading.from_memory(memory, "gpu_instance", labels)
            values = self._sampler(calls, gi, reading.GPM_OF_INSTANCE).read()
            found += reading.from_gpm(values, "gpu_instance", labels)
        for gone in self._gpm.keys() - by_gi.keys():
            self._gpm.pop(gone).restart()
        return found

    def let_go(self) -> None:
        for sampler in self._gpm.values():
            sampler.restart()
        self._gpm.clear()


@register
class GpuCollector:
    """Finds the GPUs, and says how many should be there, are listed and can be read."""

    name: ClassVar[str] = "gpu"
    interval: ClassVar[float] = 5.0
    deadline: ClassVar[float] = 2.0

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._library = use(config.nvml_library, self)
        self._devices = DeviceList(
            self._library, lambda found: GpuPart(self._library, config.node, found)
        )
        self._parts: tuple[GpuPart, ...] = ()
        self._expected: int | None = None

    def discover(self) -> Sequence[GpuPart]:
        self._expected = self._devices.expected(self._config)
        self._parts = tuple(self._devices.look())
        self._expected = self._devices.expected(self._config)
        return self._parts

    def add_to(self, snapshot: Snapshot) -> None:
        node = self._config.node
        fresh_since = time.monotonic() - _FRESH_INTERVALS * max(self.interval, 1.0)
        readable = 0
        for part in self._parts:
            fresh = part.lost is False and part.read_at >= fresh_since
            readable += fresh
            if part.lost or fresh:
                snapshot.add(
                    "tailwatch_gpu_lost",
                    int(bool(part.lost)),
                    node=node,
                    uuid=part.found.uuid,
                    index=part.found.number,
                    pci_bus_id=part.pci_bus_id,
                )
        listed = self._devices.listed
        counts = {
            "expected": self._expected,
            "listed": listed,
            "readable": readable if listed is not None else None,
        }
        for state, count in counts.items():
            snapshot.add("tailwatch_gpu_devices", count, node=node, state=state)
        blocked = self._library.blocked()
        if blocked is not None:
            snapshot.add(
                "tailwatch_nvml_blocked_seconds",
                blocked.seconds,
                node=node,
                device=blocked.device,
                call=blocked.call,
            )

    def close(self) -> None:
        leave(self._library, self)
