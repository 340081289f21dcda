"""Threads and daemons of the host that matter to a job: proxy threads, and the fabric manager.

Contract: a thread counts from when it was first seen, so that a name's sum neither falls when one
ends nor jumps when one is found. Whether the fabric manager runs is said only where its process can
be seen, or was seen before; a process of that name in the agent's own process id namespace is none.

Cost: one pass over all threads of the host every `SCAN_SECONDS`; one small file a known thread and
look.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from tailwatch.agents.node.cgroups import sees_host_processes
from tailwatch.agents.node.sysfs import attribute, names_in

SCAN_SECONDS = 30.0
MOST_NAMES = 32
_PROXIES = re.compile(r"(?i)(nccl|rccl|uccl|nvshmem|ofi|efa|fi_|ucx|deep_?ep)")
# The kernel keeps 15 letters of `nv-fabricmanager`.
_FABRIC_MANAGER = "nv-fabricmanage"
_TICK = os.sysconf("SC_CLK_TCK")

Sample = tuple[str, float, dict[str, str]]


class HostThreads:
    """What the threads of the host did since they were first seen.

    Args:
        procfs: where the processes of the host are.
        sysfs: where the drivers of the host are; one of NVSwitches needs a fabric manager.
    """

    def __init__(self, procfs: Path, sysfs: Path) -> None:
        self._procfs = procfs
        self._switches = sysfs / "bus/pci/drivers/nvidia-nvswitch"
        self._scanned_at: float | None = None
        self._threads: dict[tuple[Path, str], int] = {}
        self._spent: dict[str, int] = {}
        self._manager: bool | None = None

    def look(self) -> Iterator[Sample]:
        """Yield CPU seconds and count of proxy threads by name, and whether the manager runs."""
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
        if self._manager is not None:
            yield "tailwatch_host_fabric_manager_running", int(self._manager), {}

    def _scan(self) -> None:
        manager = False
        for process in names_in(self._procfs):
            if not process.isdecimal():
                continue
            tasks = self._procfs / process / "task"
            try:
                threads = os.listdir(tasks)
            except OSError:
                continue
            for thread in threads:
                comm = attribute(tasks / thread / "comm")
                manager = manager or comm == _FABRIC_MANAGER
                self._see(tasks / thread, thread_name(comm))
        if sees_host_processes(self._procfs) and (
            manager or self._manager is not None or self._switches.exists()
        ):
            self._manager = manager

    def _see(self, path: Path, name: str) -> None:
        if not name or (path, name) in self._threads:
            return
        ticks = _ticks(path)
        if ticks is not None and (name in self._spent or len(self._spent) < MOST_NAMES):
            self._threads[path, name] = ticks
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
