"""Sick devices: how often they are asked, single files, and an agent whose every device hangs."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import Samples
from support.procs import eventually
from support.sick import INTERVAL, SickAgent, sick_agent
from support.sysfs import Sysfs, efa_node, infiniband_node


class Node:
    """A tree of one source, its agent, and what is asked of both."""

    def __init__(self, source: str, tree: Sysfs, agent: SickAgent) -> None:
        self.source = source
        self.tree = tree
        self.agent = agent
        self.devices = sorted(p.name for p in (tree.root / "class/infiniband").iterdir())
        self.whole = self.counters()

    def counters(self) -> dict[str, set[str]]:
        """Return the names of the port counters that each device shows."""
        return counters(self.agent.samples())

    def counter_file(self, device: str) -> Path:
        """Return the counter of bytes received of a device."""
        file = "hw_counters/rx_bytes" if self.source == "efa" else "counters/port_rcv_data"
        return self.tree.root / "class/infiniband" / device / "ports/1" / file

    def rules(self, device: str, action: str) -> list[str]:
        """Return the rules for a device: for InfiniBand its driver's counters, too."""
        return [f"/infiniband/{device}/ports/1/{kind} {action}" for kind in ("counters/", "hw_c")]

    def up(self, device: str) -> float | None:
        """Return what the agent says of a device."""
        return self.agent.value("tailwatch_source_up", source=self.source, device=device)

    def errors(self, device: str, code: str) -> float:
        """Return how many reads of a device failed with a code."""
        name = "tailwatch_source_errors_total"
        return self.agent.value(name, source=self.source, device=device, code=code) or 0.0


def counters(samples: Samples) -> dict[str, set[str]]:
    """Return the names of port counters by device."""
    found: dict[str, set[str]] = {}
    for name, labels in samples:
        fields = dict(labels)
        if name.endswith("_total") and "port" in fields:
            found.setdefault(fields["device"], set()).add(name)
    return found


@pytest.fixture(scope="module", params=["efa", "infiniband"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """A node with four devices under a running agent."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "efa":
        tree = efa_node(folder / "sys", "p4d.24xlarge")
    else:
        tree = infiniband_node(folder / "sys", 4)
    with sick_agent(folder / "agent", tree.root, request.param) as agent:
        assert eventually(lambda: len(counters(agent.samples())) == 4)
        yield Node(request.param, tree, agent)


@pytest.fixture
def node(running: Node) -> Iterator[Node]:
    """The node, well before and after."""
    assert eventually(lambda: running.counters() == running.whole)
    yield running
    running.agent.sicken()


def test_hang_is_counted_once_and_met_by_nobody_else(node: Node) -> None:
    """A read that hangs counts once, shows how long it takes so far, and is not repeated."""
    sick = node.devices[0]
    reads, before = node.agent.reads(), node.errors(sick, "hung")
    node.agent.sicken(*node.rules(sick, "HANG"))
    assert eventually(lambda: node.up(sick) == 0)

    def taken() -> float:
        return node.agent.value("tailwatch_source_read_seconds", device=sick) or 0.0

    slow = taken()
    assert slow > 0.3
    assert eventually(lambda: taken() > 3 * slow)
    assert node.agent.reads() == reads + 1
    assert node.errors(sick, "hung") == before + 1


def test_dead_device_is_asked_once_an_attempt(node: Node) -> None:
    """A device that fails is asked for one file each time, and no more often than backed off."""
    device = node.devices[0]
    node.agent.sicken(*node.rules(device, "ENODEV"))
    assert eventually(lambda: node.up(device) == 0)
    failed, reads = node.errors(device, "ENODEV"), node.agent.reads()
    assert eventually(lambda: node.errors(device, "ENODEV") >= failed + 3)
    more = node.errors(device, "ENODEV") - failed
    assert node.agent.reads() - reads <= more + 1


@pytest.mark.parametrize("source", ["efa", "infiniband"])
def test_single_files_that_cannot_be_read(tmp_path: Path, source: str) -> None:
    """One file with EINVAL, one with EACCES and one that is gone cost their own series only."""
    if source == "efa":
        tree = efa_node(tmp_path / "sys", "p5.48xlarge")
        folder, names = "hw_counters", ("rx_drops", "send_wrs", "tx_pkts")
        metrics = ("rx_drops", "send_work_requests", "tx_packets")
    else:
        tree = infiniband_node(tmp_path / "sys", 4)
        folder, names = "counters", ("VL15_dropped", "link_downed", "symbol_error")
        metrics = ("vl15_dropped", "link_downed", "symbol_errors")
    device = sorted(p.name for p in (tree.root / "class/infiniband").iterdir())[0]
    with sick_agent(tmp_path / "agent", tree.root, source) as agent:
        node = Node(source, tree, agent)
        refused, forbidden, gone = names
        entry = (tree.root / "class/infiniband" / device).resolve()
        where = f"/infiniband/{device}/ports/1/{folder}"
        # A driver that is loaded anew: its files are opened again, and one is not there any more.
        agent.sicken(f"{where}/{refused} EINVAL", f"{where}/{forbidden} EACCES")
        unreadable = f"tailwatch_{source}_unreadable_files"
        assert eventually(lambda: agent.value(unreadable, device=device) == 2)
        old = entry.rename(tmp_path / "old")
        shutil.copytree(old, tmp_path / "new", symlinks=True)
        (tmp_path / "new/ports/1" / folder / gone).unlink()
        (tmp_path / "new").rename(entry)
        lacks = {f"tailwatch_{source}_{metric}_total" for metric in metrics}
        assert lacks < node.whole[device]
        assert eventually(lambda: node.counters()[device] == node.whole[device] - lacks)
        assert {d: c for d, c in node.counters().items() if d != device} == {
            d: c for d, c in node.whole.items() if d != device
        }
        assert node.up(device) == 1
        assert agent.value(unreadable, device=device) == 2
        asked = agent.reads()
        failed = agent.value("tailwatch_source_errors_total", device=device)
        time.sleep(3 * INTERVAL)
        assert (agent.reads(), failed) == (asked, None)


def test_metrics_answer_while_everything_hangs(node: Node) -> None:
    """With every device hanging each of many scrapes is answered within a second."""
    node.agent.sicken("/infiniband/ HANG")
    assert eventually(lambda: all(node.up(device) == 0 for device in node.devices))
    for _ in range(50):
        started = time.monotonic()
        assert node.agent.get("/metrics")[0] == 200
        assert time.monotonic() - started < 1


def test_sigterm_while_everything_hangs(tmp_path: Path) -> None:
    """SIGTERM ends the agent with 0 within 2 s, although every device hangs."""
    tree = efa_node(tmp_path / "sys", "p4d.24xlarge")
    with sick_agent(tmp_path / "agent", tree.root, "efa") as agent:
        agent.sicken("/infiniband/ HANG")
        assert eventually(lambda: agent.value("tailwatch_source_up", source="efa") == 1)
        started = time.monotonic()
        assert agent.kill(signal.SIGTERM) == 0
        assert time.monotonic() - started < 2
