"""Xid events from NVML beside the kernel log: each once, whatever another GPU does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.kmsg import FakeKmsg
from support.nvml.fixtures import Node, says, value
from support.procs import eventually
from tailwatch.agents.node import nvml_events
from tailwatch.agents.node.base import SourceError
from tailwatch.agents.node.collectors.xid import XidCollector
from tailwatch.agents.node.nvml_events import NvmlEvents
from tailwatch.agents.node.watch import Watch

XID, CLOCK = 8, 16


@pytest.fixture
def events(gpu_node: Node) -> Iterator[NvmlEvents]:
    """The event set of a node with eight H100."""
    gpu_node.has()
    made = NvmlEvents(gpu_node.nvml.path)
    yield made
    made.close()


def test_events_are_taken_without_waiting(gpu_node: Node, events: NvmlEvents) -> None:
    """Events come with the PCI address of their GPU, in order, each once; other kinds are none."""
    assert events.read() == []
    gpu_node.nvml.tell(
        f"event 1 0 {XID} 13 0 0", f"event 2 1 {CLOCK} 0 0 0", f"event 3 1 {XID} 79 0 0"
    )
    found = events.read()
    assert [event.xid for event in found] == [13, 79]
    assert found[0].device != found[1].device
    assert all(len(event.device) == len("0000:3b:00.0") for event in found)
    assert events.read() == []


def test_nothing_is_held_after_closing(gpu_node: Node, events: NvmlEvents) -> None:
    """Closing frees the event set and NVML."""
    events.read()
    assert gpu_node.nvml.outstanding()[:2] == (1, 1)
    events.close()
    assert gpu_node.nvml.outstanding()[:2] == (0, 0)
    assert events.read() == []


def test_lost_gpu_does_not_end_the_events_of_others(
    gpu_node: Node, events: NvmlEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set that says a GPU is lost is made anew without it."""
    monkeypatch.setattr(nvml_events, "_AGAIN_SECONDS", 0.0)
    events.read()
    lost = ("fail 0 nvmlDeviceRegisterEvents 15", "fail 0 nvmlDeviceGetPciInfo 15")
    gpu_node.nvml.tell("fail -2 nvmlEventSetWait_v2 15", *lost)
    assert events.read() == []
    gpu_node.nvml.tell(*lost, f"event 5 0 {XID} 79 0 0", f"event 6 3 {XID} 31 0 0")
    assert [event.xid for event in events.read()] == [31]


def test_no_gpu_at_all_is_an_error(gpu_node: Node, events: NvmlEvents) -> None:
    """When no GPU takes part in events the source says so."""
    gpu_node.nvml.tell("fail * nvmlDeviceRegisterEvents 3")
    with pytest.raises(SourceError, match="no GPU"):
        events.read()


def test_both_reporters_under_the_agents_watch(
    gpu_node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Xid that both tell of counts once, and while one of them is dead the other counts."""
    monkeypatch.setattr(XidCollector, "interval", 0.05)
    gpu_node.has("h100", log=tmp_path)
    probe = NvmlEvents(gpu_node.nvml.path)
    probe.read()
    gpu_node.nvml.tell(f"event 1 2 {XID} 13 0 0")
    address = probe.read()[0].device
    probe.close()
    gpu_node.nvml.tell()
    drivers = tmp_path / "bus/pci/drivers/nvidia"
    drivers.mkdir(parents=True)
    (drivers / address).touch()
    fake = FakeKmsg()
    fake.log("boot")
    collector = XidCollector(gpu_node.config, opener=fake.opener, reader=fake.reader)
    watch = Watch([collector], gpu_node.config, stale_floor=0.0)
    watch.start()

    def count(xid: str) -> float | None:
        return value(says(watch), "tailwatch_xid_events_total", device=address, xid=xid)

    def up(part: str) -> float | None:
        return value(says(watch), "tailwatch_source_up", source="xid", device=part)

    assert eventually(lambda: (up("kmsg"), up("nvml"), count("13")) == (1, 1, 0))
    fake.log(f"NVRM: Xid (PCI:{address[:-2]}): 13, pid=1, name=python, Graphics Exception")
    gpu_node.nvml.tell(f"event 2 2 {XID} 13 0 0", f"event 3 2 {XID} 31 0 0")
    assert eventually(lambda: (count("13"), count("31")) == (1, 1))
    fake.log(f"NVRM: Xid (PCI:{address[:-2]}): 31, pid=1, name=python, MMU Fault")
    fake.log(f"NVRM: Xid (PCI:{address[:-2]}): 48, pid=1, name=python, DBE")
    assert eventually(lambda: count("48") == 1)
    assert (count("13"), count("31")) == (1, 1)
    gpu_node.nvml.tell("fail -2 nvmlEventSetWait_v2 999")
    fake.log(f"NVRM: Xid (PCI:{address[:-2]}): 79, GPU has fallen off the bus.")
    assert eventually(lambda: (up("nvml"), up("kmsg"), count("79")) == (0, 1, 1))
    gpu_node.nvml.tell(f"event 9 2 {XID} 79 0 0")
    assert eventually(lambda: up("nvml") == 1)
    assert count("79") == 1
    watch.close()
    assert gpu_node.nvml.outstanding()[:2] == (0, 0)
    fake.end()
