"""A node with every source there is, under one running agent, and the ways in which it can be sick.

Real files, sockets and libraries on all seams: a tree for sysfs and procfs, a fake NVML library, a
fifo that keeps records apart for the kernel log, a gRPC server for kubelet, a ring of a rank.
"""

from __future__ import annotations

import fcntl
import functools
import os
import threading
import time
from pathlib import Path

from support.agents import Agent, Samples, parse
from support.kubelet import FakeKubelet, devices, pod
from support.nvml.fake import CONTROL, FakeNvml
from support.nvml.fixtures import uuid_of
from support.procs import eventually
from support.ranks import append_steps, ring
from support.sick import DEADLINE, INTERVAL, STALE, shim
from support.sysfs import efa_node, link, write

NODE = "node-0"
_F_SETPIPE_SZ = 1031
_UID = "0a1b2c3d-1111-2222-3333-444455556666"

# The real agent, only faster: a fault is seen after an interval and a deadline of its own.
_FASTER = f"""
import sys
from tailwatch.agents.node import lane, main, source, watch
from tailwatch.agents.node.collectors import COLLECTORS
from tailwatch.agents.node.nvml import gpm, library
for collector in COLLECTORS.values():
    collector.interval, collector.deadline = {INTERVAL}, {DEADLINE}
source.DISCOVER_SECONDS = {INTERVAL}
lane.BACKOFF_INTERVALS = 3
lane.WATCH_SECONDS = 0.1
watch.STALE_FLOOR_SECONDS = {STALE}
library.BLOCKED_SECONDS = {DEADLINE}
# Eight devices that hang one after the other have to fit into what is not yet stale.
library.PATIENCE_SECONDS = 0.02
# Reads of a busy machine may come closer than NVML allows for two samples.
gpm.MIN_SECONDS = 0.0
main.RENDER_SECONDS = 0.1
main.POLL_SECONDS = 0.05
sys.exit(main.main())
"""
# What is about the sources themselves, or only there while something is wrong.
_CHANGING = ("tailwatch_source_", "tailwatch_nvml_", "tailwatch_gpu_profiling_stuck")

Key = tuple[str, frozenset[tuple[str, str]]]


class KernelLog:
    """A kernel log in a fifo: one read is one record, as of `/dev/kmsg`."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        # In packet mode a pipe hands out what one write wrote.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)
        fcntl.fcntl(self._fd, _F_SETPIPE_SZ, 1 << 20)
        self._sequence = 0
        self._flood: threading.Thread | None = None
        self._ended = threading.Event()
        self.log("Linux version 6.12")

    def log(self, text: str) -> None:
        """Let the kernel write a record."""
        record = f"3,{self._sequence},{self._sequence},-;{text}\n".encode()
        while True:
            try:
                os.write(self._fd, record)
            except BlockingIOError:
                time.sleep(0.001)
            else:
                break
        self._sequence += 1

    def flood(self) -> None:
        """Write as fast as anybody reads, until `calm`."""
        self._ended.clear()

        def write_on() -> None:
            while not self._ended.is_set():
                self.log("something of no interest")

        self._flood = threading.Thread(target=write_on, daemon=True)
        self._flood.start()

    def calm(self) -> None:
        """End a flood."""
        self._ended.set()
        if self._flood is not None:
            self._flood.join()
            self._flood = None

    def close(self) -> None:
        """Close it."""
        self.calm()
        os.close(self._fd)


class WholeNode:
    """The node and its agent.

    Attributes:
        rdma: the names of its RDMA devices, EFA and others.
        whole: the series it has while it is well.
    """

    def __init__(self, folder: Path, *, library: bool = True) -> None:
        self.folder = folder
        self.sysfs = efa_node(folder / "sys", "p4d.24xlarge")
        for index in range(2):
            address = f"0000:f{index}:00.0"
            self.sysfs.mlx5(f"mlx5_{index}", address, "0000:e0:01.0", interface=f"ib{index}")
        self.rdma = sorted(p.name for p in (folder / "sys/class/infiniband").iterdir())
        self.nvml = FakeNvml(folder / "nvml", "h100")
        for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca"):
            address = f"0000:{bus}:00.0"
            target = self.sysfs.pci(address, "0000:e0:02.0", "0x10de", "0x2330", kind="0x030200")
            link(folder / "sys/bus/pci/drivers/nvidia" / address, target)
        self._write_host()
        (folder / "kubelet").mkdir()
        self.kubelet = FakeKubelet(folder / "kubelet/k.sock")
        self.kubelet.pods = [pod("a", devices("nvidia.com/gpu", uuid_of(0)))]
        self.kernel = KernelLog(folder / "kmsg")
        rings = folder / "steps/rings"
        rings.mkdir(parents=True)
        append_steps(ring(rings, 0, node=NODE), 0, 1, 3, node=NODE)
        self._rules, self._reads = folder / "rules", folder / "reads"
        self._rules.write_text("")
        self._reads.write_bytes(b"")
        self.library = folder / "libnvidia-ml.so.1"
        if library:
            self.bring_library()
        self.tell()
        self.agent = Agent("node", self._arguments(), folder / "ready", program=["-c", _FASTER],
                           environment=self._environment())  # fmt: skip
        self.whole: frozenset[Key] = frozenset()

    def _write_host(self) -> None:
        procfs = self.folder / "proc"
        write(procfs / "pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=15")
        write(procfs / "meminfo", "MemTotal: 2048 kB\nMemAvailable: 1024 kB\nShmem: 4 kB")
        write(procfs / "vmstat", "oom_kill 3")
        write(procfs / "1001/cgroup", f"0::/kubepods.slice/kubepods-pod{_UID}.slice/cri.scope")
        (procfs / "self/ns").mkdir(parents=True)
        (procfs / "self/ns/pid").symlink_to("pid:[4026531836]")
        pods = self.folder / "sys/fs/cgroup/kubepods.slice" / f"kubepods-pod{_UID}.slice"
        write(pods / "memory.events", "oom_kill 0")

    def _arguments(self) -> list[str | Path]:
        at = self.folder
        return [
            *("--node", NODE, "--listen", "127.0.0.1:0", "--nvml.library", self.library),
            *("--path.sysfs", at / "sys", "--path.procfs", at / "proc", "--kmsg.path", at / "kmsg"),
            *("--podresources.socket", self.kubelet.socket, "--steps.directory", at / "steps"),
        ]

    def _environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(shim()),
            "SICK_RULES": str(self._rules),
            "SICK_LOG": str(self._reads),
            CONTROL: os.environ[CONTROL],
        }

    def bring_library(self) -> None:
        """Put the NVML library where the agent looks for it."""
        self.library.symlink_to(self.nvml.path)

    def tell(self, *orders: str) -> None:
        """Give NVML these orders and no others."""
        self.nvml.tell(f"process 0 1001 {1 << 30}", *orders)

    def sicken(self, *rules: str) -> None:
        """Let reads of files fail by these rules and no others."""
        fresh = self._rules.with_suffix(".new")
        fresh.write_text("".join(f"{rule}\n" for rule in rules))
        os.replace(fresh, self._rules)

    def settle(self) -> None:
        """Wait until everything is read, and take what there is as the whole."""

        def steady() -> bool:
            before, self.whole = self.whole, self.series()
            up = [v for (n, _), v in self.scrape().items() if n == "tailwatch_source_up"]
            return len(up) > 40 and set(up) == {1.0} and before == self.whole

        assert eventually(steady), self.agent.get("/-/ready")[1].decode()

    def series(self) -> frozenset[Key]:
        """Return the series that do not come and go with faults."""
        return steady_series(self.scrape())

    def scrape(self) -> Samples:
        """Return what `/metrics` says; fail when it takes a second."""
        started = time.monotonic()
        status, body, _ = self.agent.get("/metrics")
        assert time.monotonic() - started < 1
        assert status == 200, body
        lines = (line.rpartition(" ") for line in body.decode().splitlines() if line[0] != "#")
        return {_key(series): float(number) for series, _, number in lines}

    def close(self) -> None:
        """End the agent and all that it reads."""
        self.sicken()
        self.tell()
        self.agent.kill()
        self.kubelet.stop()
        self.kernel.close()


@functools.lru_cache(maxsize=8192)
def _key(series: str) -> Key:
    """Take one series apart; the same ones come again and again."""
    ((key, _),) = parse(f"{series} 0\n".encode()).items()
    return key


def steady_series(samples: Samples) -> frozenset[Key]:
    """Return the series that are there for as long as their device is well."""
    return frozenset(key for key in samples if not key[0].startswith(_CHANGING))
