"""The source `host`: what on the host itself makes a rank slow, and the fabric canary.

Contract: pressure, memory and OOM kills of the host; throttling and OOM kills of each pod's cgroup
(version 2); CPU time of the threads that move data for NCCL, UCCL, NVSHMEM and libfabric; bytes of
the Ethernet interfaces and the allowances their instance used up. EFA traffic does not pass those
interfaces, so a job that fell from EFA back to TCP shows as EFA bytes that stand still while these
grow. Each of these is a part, and one more for each peer of the canary.

Cost: a few small files a second; one pass over all threads of the host every 30 s; one ioctl per
ENA interface a second.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from tailwatch.agents.node import ethtool
from tailwatch.agents.node.canary import EchoServer, canary
from tailwatch.agents.node.collectors.base import NodeConfig, Part, ResetWatch, register
from tailwatch.agents.node.sysfs import attribute, linked_name, names_in
from tailwatch.catalogue.host import ALLOWANCES
from tailwatch.exposition import Snapshot

MOST_CGROUPS = 512
SCAN_SECONDS = 30.0
_PROXIES = re.compile(r"(?i)(nccl|rccl|uccl|nvshmem|ofi|efa|fi_|ucx|deep_?ep)")
_MEMORY = {"MemTotal": "total", "MemAvailable": "available", "Shmem": "shared"}
_TICK = os.sysconf("SC_CLK_TCK")

Sample = tuple[str, float, dict[str, str]]


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
        self._proxies = ProxyThreads(config.procfs)
        looks = {
            "pressure": self._pressure,
            "memory": self._memory,
            "cgroups": self._cgroups,
            "proxies": self._proxies.look,
            "network": self._network,
        }
        self._parts: list[Part] = [_Samples(key, config.node, look) for key, look in looks.items()]
        self._parts += [canary(config.node, peer) for peer in config.canary_peers]
        self._echo = EchoServer(config.canary_listen) if config.canary_listen else None
        self._left_out = 0

    def discover(self) -> Sequence[Part]:
        return self._parts

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
        # The kernel is asked by name, so only when these are the interfaces of this kernel.
        ask = os.path.ismount(self._sysfs)
        for name in names_in(self._sysfs / "class/net"):
            entry = self._sysfs / "class/net" / name
            if not (entry / "device").exists():
                continue  # loopback, bridges and the pods' ends of veth pairs
            labels = {"interface": name}
            for file, direction in (("rx_bytes", "received"), ("tx_bytes", "transmitted")):
                count = attribute(entry / "statistics" / file)
                if count.isdecimal():
                    metric = f"tailwatch_host_network_{direction}_bytes_total"
                    yield metric, int(count), labels
            carrier = attribute(entry / "carrier")
            if carrier in ("0", "1"):
                yield "tailwatch_host_network_carrier", int(carrier), labels
            if ask and linked_name(entry / "device/driver") == "ena":
                for statistic, value in ethtool.statistics(name).items():
                    if statistic in ALLOWANCES:
                        exceeded = {**labels, "allowance": ALLOWANCES[statistic]}
                        metric = "tailwatch_host_network_allowance_exceeded_total"
                        yield metric, value, exceeded

    def add_to(self, snapshot: Snapshot) -> None:
        """Add nothing: the parts have it all."""

    def close(self) -> None:
        if self._echo is not None:
            self._echo.close()


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


class ProxyThreads:
    """CPU time of the threads that move data for a communication library.

    Each counts from when it was first seen, so that a name's sum neither falls when a thread ends
    nor jumps when one is found.
    """

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._scanned_at: float | None = None
        self._threads: dict[tuple[Path, str], int] = {}
        self._spent: dict[str, int] = {}

    def look(self) -> Iterator[Sample]:
        """Yield CPU seconds and count of threads by name."""
        now = time.monotonic()
        if self._scanned_at is None or now - self._scanned_at >= SCAN_SECONDS:
            self._scanned_at = now
            self._scan()
        count = dict.fromkeys(self._spent, 0)
        for (path, name), before in list(self._threads.items()):
            ticks = _ticks(path)
            if ticks is None or ticks < before:
                del self._threads[path, name]
                continue
            self._threads[path, name] = ticks
            self._spent[name] += ticks - before
            count[name] += 1
        for name, spent in self._spent.items():
            labels = {"thread": name}
            yield "tailwatch_host_proxy_thread_cpu_seconds_total", spent / _TICK, labels
            yield "tailwatch_host_proxy_threads", count[name], labels

    def _scan(self) -> None:
        for process in names_in(self._procfs):
            if not process.isdecimal():
                continue
            tasks = self._procfs / process / "task"
            try:
                threads = os.listdir(tasks)
            except OSError:
                continue
            for thread in threads:
                name = thread_name(attribute(tasks / thread / "comm"))
                if name and (tasks / thread, name) not in self._threads:
                    ticks = _ticks(tasks / thread)
                    if ticks is not None and (name in self._spent or len(self._spent) < 32):
                        self._threads[tasks / thread, name] = ticks
                        self._spent.setdefault(name, 0)


def thread_name(comm: str) -> str:
    """Return the name of a proxy thread without its numbers; "" for any other thread.

    >>> thread_name("NCCL Progress 3")
    'NCCL Progress'
    """
    return re.sub(r"[\s\d:/_-]*\d+[\s\d:/_-]*", " ", comm).strip() if _PROXIES.match(comm) else ""


def _ticks(task: Path) -> int | None:
    """Return user and system time of a thread in ticks; None when it has ended."""
    fields = attribute(task / "stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else None
