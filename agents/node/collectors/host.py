"""The source `host`: what on the host itself makes a rank slow, and the fabric canary.

Contract: pressure, memory and OOM kills of the host; throttling and OOM kills of each pod's cgroup
(version 2); CPU time of the threads that move data for NCCL, UCCL, NVSHMEM and libfabric; whether
the fabric manager runs; bytes of the Ethernet interfaces. EFA traffic does not pass those, so a job
that fell from EFA back to TCP shows as EFA bytes that stand still while these grow. Each of these
is a part, and so are the allowances of each ENA interface (its driver asks its device for them, and
that may hang) and each peer of the canary.

Cost: a few small files a second; one pass over all threads of the host every 30 s; one ioctl per
ENA interface a second.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from tailwatch.agents.node import ethtool
from tailwatch.agents.node.base import NodeConfig, Part, ResetWatch, register
from tailwatch.agents.node.canary import EchoServer, canary
from tailwatch.agents.node.host_threads import HostThreads, Sample
from tailwatch.agents.node.sysfs import attribute, linked_name, names_in
from tailwatch.catalogue.host import ALLOWANCES
from tailwatch.exposition import Snapshot

MOST_CGROUPS = 512
_MEMORY = {"MemTotal": "total", "MemAvailable": "available", "Shmem": "shared"}


class _Samples:
    """A part whose reading is a function that yields samples without the label `node`."""

    def __init__(self, key: str, node: str, look: Callable[[], Iterator[Sample]]) -> None:
        self.key = key
        self.resets = ResetWatch()
        self._node = node
        self._look = look
        self._seen: tuple[Sample, ...] = ()

    def read(self) -> None:
        seen = tuple(self._look())
        self.resets.see(
            {
                f"{name}{sorted(labels.items())}": value
                for name, value, labels in seen
                if name.endswith("_total")
            }
        )
        self._seen = seen

    def add_to(self, snapshot: Snapshot) -> None:
        for name, value, labels in self._seen:
            snapshot.add(name, value, node=self._node, **labels)

    def close(self) -> None:
        """Do nothing: no file stays open."""


@register
class HostCollector:
    """Reads the host below `procfs` and `sysfs`, and runs the canary."""

    name: ClassVar[str] = "host"
    interval: ClassVar[float] = 1.0
    deadline: ClassVar[float] = 2.0

    def __init__(self, config: NodeConfig) -> None:
        self._procfs = config.procfs
        self._sysfs = config.sysfs
        self._node = config.node
        self._load = config.load
        looks = {
            "pressure": self._pressure,
            "memory": self._memory,
            "cgroups": self._cgroups,
            "threads": HostThreads(config.procfs, config.sysfs).look,
            "network": self._network,
        }
        self._parts: list[Part] = [_Samples(key, config.node, look) for key, look in looks.items()]
        self._parts += [canary(config.node, peer, config.load) for peer in config.canary_peers]
        self._allowances: dict[str, _Samples] = {}
        self._echo = EchoServer(config.canary_listen) if config.canary_listen else None
        self._left_out = 0

    def discover(self) -> Sequence[Part]:
        names = self._ena_interfaces()
        for name in names:
            if name not in self._allowances:
                look = functools.partial(_allowances, name)
                self._allowances[name] = _Samples(f"allowances/{name}", self._node, look)
        return [*self._parts, *(self._allowances[name] for name in names)]

    def _ena_interfaces(self) -> list[str]:
        # The kernel is asked by name, so only when these are the interfaces of this kernel.
        if not os.path.ismount(self._sysfs):
            return []
        folder = self._sysfs / "class/net"
        return [n for n in names_in(folder) if linked_name(folder / n / "device/driver") == "ena"]

    def _pressure(self) -> Iterator[Sample]:
        for resource in ("cpu", "memory", "io"):
            try:
                text = (self._procfs / "pressure" / resource).read_text()
            except FileNotFoundError:
                continue  # a kernel without PSI knows no pressure
            for line in text.splitlines():
                share, _, rest = line.partition(" ")
                total = re.search(r"total=(\d+)", rest)
                if total:
                    labels = {"resource": resource, "share": share}
                    seconds = int(total[1]) / 1e6
                    yield "tailwatch_host_pressure_seconds_total", seconds, labels

    def _memory(self) -> Iterator[Sample]:
        for line in (self._procfs / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in _MEMORY:
                size = int(rest.split()[0]) * 1024
                yield "tailwatch_host_memory_bytes", size, {"kind": _MEMORY[name]}
        for line in (self._procfs / "vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                yield "tailwatch_host_oom_kills_total", int(count), {}

    def _cgroups(self) -> Iterator[Sample]:
        root = self._sysfs / "fs/cgroup"
        pods = sorted(_pods_below(root, depth=3))
        self._left_out = max(len(pods) - MOST_CGROUPS, 0)
        for pod in pods[:MOST_CGROUPS]:
            labels = {"cgroup": pod}
            events = _pairs(root / pod / "memory.events")
            if "oom_kill" in events:
                yield "tailwatch_cgroup_oom_kills_total", events["oom_kill"], labels
            cpu = _pairs(root / pod / "cpu.stat")
            if "throttled_usec" in cpu:
                seconds = cpu["throttled_usec"] / 1e6
                yield "tailwatch_cgroup_throttled_seconds_total", seconds, labels
                periods = cpu.get("nr_throttled", 0)
                yield "tailwatch_cgroup_throttled_periods_total", periods, labels
        yield "tailwatch_host_cgroups_left_out", self._left_out, {}

    def _network(self) -> Iterator[Sample]:
        for name in names_in(self._sysfs / "class/net"):
            entry = self._sysfs / "class/net" / name
            if not (entry / "device").exists():
                continue  # loopback, bridges and the pods' ends of veth pairs
            labels = {"interface": name}
            moved = []
            for file, direction in (("rx_bytes", "received"), ("tx_bytes", "transmitted")):
                count = attribute(entry / "statistics" / file)
                if count.isdecimal():
                    moved.append(int(count))
                    metric = f"tailwatch_host_network_{direction}_bytes_total"
                    yield metric, int(count), labels
            if len(moved) == 2:
                self._load.note(f"interface/{name}", sum(moved))
            carrier = attribute(entry / "carrier")
            if carrier in ("0", "1"):
                yield "tailwatch_host_network_carrier", int(carrier), labels

    def add_to(self, snapshot: Snapshot) -> None:
        """Add nothing: the parts have it all."""

    def close(self) -> None:
        if self._echo is not None:
            self._echo.close()


def _allowances(interface: str) -> Iterator[Sample]:
    for statistic, value in ethtool.statistics(interface).items():
        if statistic in ALLOWANCES:
            labels = {"interface": interface, "allowance": ALLOWANCES[statistic]}
            yield "tailwatch_host_network_allowance_exceeded_total", value, labels


def _pods_below(root: Path, depth: int) -> Iterator[str]:
    """Yield the cgroups of pods, by their path below `root`."""
    for top in ("kubepods.slice", "kubepods"):
        yield from _walk(root, top, depth)


def _walk(root: Path, path: str, depth: int) -> Iterator[str]:
    try:
        entries = [entry.name for entry in os.scandir(root / path) if entry.is_dir()]
    except OSError:
        return
    for name in entries:
        if re.search(r"(^|-)pod[0-9a-f]", name):
            yield f"{path}/{name}"
        elif depth > 1:
            yield from _walk(root, f"{path}/{name}", depth - 1)


def _pairs(path: Path) -> dict[str, int]:
    """Return the `name number` lines of a cgroup file; nothing when it is gone by now."""
    found = {}
    for line in attribute(path).splitlines():
        name, _, value = line.partition(" ")
        if value.isdecimal():
            found[name] = int(value)
    return found
