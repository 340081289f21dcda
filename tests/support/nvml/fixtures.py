"""A node with a fake NVML, and what its collectors say, for tests within this process."""

from __future__ import annotations

import functools
import importlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.agents import Samples, parse
from support.nvml.fake import CONTROL, FakeNvml
from support.procs import eventually
from tailwatch.agents.node.base import Collector, NodeConfig, SourceError
from tailwatch.agents.node.collectors.gpu import GpuCollector
from tailwatch.agents.node.collectors.nvlink import NvlinkCollector
from tailwatch.agents.node.nvml import gpm, library
from tailwatch.agents.node.watch import Watch
from tailwatch.exposition import Snapshot
from tailwatch.tools import find_tool

pynvml: Any = importlib.import_module("pynvml")

UUID = "GPU-{0:08x}-0000-4000-8000-{1:012x}"


def uuid_of(index: int) -> str:
    """Return the UUID the fake gives its device of that index."""
    return UUID.format(index, 0xA0 + index)


class Node:
    """A node whose collectors a test runs by hand, or under the agent's own watch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nvml: FakeNvml
        self.config: NodeConfig
        self._given = 0
        self._watches: list[Watch] = []
        self._collectors: list[Collector] = []

    def has(
        self, profile: str = "h100", *orders: str, without: tuple[str, ...] = (), **config: Any
    ) -> FakeNvml:
        """Give the node its GPUs; `config` are fields of its NodeConfig."""
        if hasattr(self, "nvml"):
            self.close()
        self._given += 1
        # nvidia-ml-py keeps the functions of the library before.
        pynvml._nvmlGetFunctionPointer_cache.clear()
        self.nvml = FakeNvml(self.directory / f"nvml-{self._given}", profile, without)
        self.nvml.tell(*orders)
        self.config = NodeConfig(
            node="n", sysfs=self.directory, nvml_library=self.nvml.path, **config
        )
        return self.nvml

    def collector(self, kind: type[Collector] = GpuCollector) -> Collector:
        """Return a new collector of the node; it is closed after the test."""
        made = kind(self.config)
        self._collectors.append(made)
        return made

    def read(self, collector: Collector, times: int = 1) -> Samples:
        """Read every part so often and return the samples the collector then has."""
        return parse(self.exposition(collector, times))

    def exposition(self, collector: Collector, times: int = 1) -> bytes:
        """Read every part so often and return what the collector then says.

        A part that fails is left out, as the agent does once its data are old.
        """
        snapshot = Snapshot()
        parts = collector.discover()
        for part in parts:
            try:
                for _ in range(times):
                    part.read()
            except SourceError:
                continue
            part.add_to(snapshot)
        collector.add_to(snapshot)
        return snapshot.render()

    def watch(self, *kinds: type[Collector]) -> Watch:
        """Run collectors as the agent does, with short intervals."""
        watch = Watch([self.collector(kind) for kind in kinds], self.config, stale_floor=0.0)
        self._watches.append(watch)
        watch.start()
        return watch

    def close(self) -> None:
        """Let everything go, whatever a test has left hanging."""
        self.nvml.tell()
        for watch in self._watches:
            assert eventually(functools.partial(_idle, watch))
            watch.close()
        for collector in self._collectors:
            collector.close()
        self._watches, self._collectors = [], []


def _idle(watch: Watch) -> bool:
    return not any(source.busy() for source in watch.sources)


def check_with_promtool(exposition: bytes) -> None:
    """Fail when promtool finds fault with an exposition."""
    checked = subprocess.run(
        [find_tool("promtool", pinned=True), "check", "metrics"],
        input=exposition,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def says(watch: Watch) -> Samples:
    """Return what the agent would say now."""
    return parse(watch.render().render())


def values(samples: Samples, name: str, **labels: str) -> list[float]:
    """Return the values of a metric whose labels hold these."""
    wanted = set(labels.items())
    return [value for (n, own), value in samples.items() if n == name and wanted <= own]


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """Return the only such value, None without one."""
    found = values(samples, name, **labels)
    assert len(found) <= 1, found
    return found[0] if found else None


@pytest.fixture
def gpu_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node whose NVML is the fake one, read often, without the wait between two GPM samples."""
    for kind in (GpuCollector, NvlinkCollector):
        monkeypatch.setattr(kind, "interval", 0.1)
        monkeypatch.setattr(kind, "deadline", 0.5)
    monkeypatch.setattr(gpm, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(library, "_libraries", {})
    monkeypatch.setattr(library, "BLOCKED_SECONDS", 0.4)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv(CONTROL, "")
    made = Node(tmp_path)
    yield made
    if hasattr(made, "nvml"):
        made.close()
