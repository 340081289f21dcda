"""Sick devices: what is well stays whole, what is sick is named, and comes back."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.agents import Samples
from support.procs import eventually
from support.sick import SickAgent, sick_agent
from support.sysfs import Sysfs, efa_node, infiniband_node, write

ERRORS = ("EIO", "EINVAL", "ENODEV", "ETIME", "EACCES")


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
def node(
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


@pytest.fixture(autouse=True)
def well(node: Node) -> Iterator[None]:
    """Every test begins and ends with a node that is well."""
    assert eventually(lambda: node.counters() == node.whole)
    yield
    node.agent.sicken()


@pytest.fixture(params=["one", "all"])
def sick(request: pytest.FixtureRequest, node: Node) -> list[str]:
    """The devices that fall sick."""
    return node.devices[:1] if request.param == "one" else node.devices


def falls_sick(node: Node, sick: list[str], begin: Callable[[], None], code: str) -> None:
    """Check what holds while devices are sick: health, isolation and an answer at once."""
    healthy = [device for device in node.devices if device not in sick]
    before = {device: node.errors(device, code) for device in sick}
    begin()
    assert eventually(lambda: all(node.up(device) == 0 for device in sick))
    assert eventually(lambda: all(node.errors(d, code) > before[d] for d in sick))
    assert eventually(lambda: not set(sick) & set(node.counters()))
    started = time.monotonic()
    found = node.counters()
    assert time.monotonic() - started < 1
    for device in healthy:
        assert node.up(device) == 1
        assert found[device] == node.whole[device]
    ready, body, _ = node.agent.get("/-/ready")
    assert ready == (200 if healthy else 503)
    assert all(device in body.decode() for device in sick)


def gets_well(node: Node, sick: list[str]) -> None:
    """Check that what was sick is whole again."""
    assert eventually(lambda: all(node.up(device) == 1 for device in sick))
    assert eventually(lambda: node.counters() == node.whole)
    assert eventually(lambda: node.agent.get("/-/ready")[0] == 200)


@pytest.mark.parametrize("error", ERRORS)
def test_failing_reads(node: Node, sick: list[str], error: str) -> None:
    """A device whose reads fail is down with the errno's name; the others stay whole."""
    rules = [rule for device in sick for rule in node.rules(device, error)]
    falls_sick(node, sick, lambda: node.agent.sicken(*rules), error)
    node.agent.sicken()
    gets_well(node, sick)


def test_hanging_reads(node: Node, sick: list[str]) -> None:
    """A device whose read hangs is down, counted once and read by nobody else meanwhile."""
    rules = [rule for device in sick for rule in node.rules(device, "HANG")]
    reads = node.agent.reads()
    before = {device: node.errors(device, "hung") for device in sick}
    falls_sick(node, sick, lambda: node.agent.sicken(*rules), "hung")
    assert node.agent.reads() == reads + len(sick)
    assert all(node.errors(device, "hung") == before[device] + 1 for device in sick)
    slow = node.agent.value("tailwatch_source_read_seconds", device=sick[0]) or 0.0
    assert slow > 0.3
    assert eventually(
        lambda: (node.agent.value("tailwatch_source_read_seconds", device=sick[0]) or 0) > slow
    )
    node.agent.sicken()
    gets_well(node, sick)


def test_vanishing_devices(node: Node, sick: list[str]) -> None:
    """A device that is gone stays as a source that is down, and one that is back is whole."""
    aside = node.tree.root / "aside"
    aside.mkdir(exist_ok=True)
    links = [node.tree.root / "class/infiniband" / device for device in sick]

    def begin() -> None:
        for link in links:
            link.rename(aside / link.name)

    falls_sick_gone(node, sick, begin)
    for link in links:
        (aside / link.name).rename(link)
    shutil.rmtree(aside)
    gets_well(node, sick)


def falls_sick_gone(node: Node, sick: list[str], begin: Callable[[], None]) -> None:
    """Check what holds while devices are gone."""
    healthy = [device for device in node.devices if device not in sick]
    before = {device: node.errors(device, "gone") for device in sick}
    begin()
    assert eventually(lambda: all(node.errors(d, "gone") == before[d] + 1 for d in sick))
    assert all(node.up(device) == 0 for device in sick)
    assert eventually(lambda: not set(sick) & set(node.counters()))
    assert all(node.counters()[device] == node.whole[device] for device in healthy)
    total = "tailwatch_efa_devices" if node.source == "efa" else "tailwatch_infiniband_devices"
    assert eventually(lambda: node.agent.value(total) == len(healthy))


@pytest.mark.parametrize("change", ["reset", "jump"])
def test_counters_that_reset_or_jump(node: Node, sick: list[str], change: str) -> None:
    """A counter is shown as it is; one that fell is a counted reset, one that jumped is none."""
    name = "tailwatch_efa_rx_bytes_total"
    factor = 1
    if node.source == "infiniband":
        name, factor = "tailwatch_infiniband_received_bytes_total", 4
    files = {device: node.counter_file(device) for device in sick}
    resets = {d: node.agent.value("tailwatch_source_resets_total", device=d) or 0 for d in sick}
    before = {device: int(file.read_text()) for device, file in files.items()}
    value = 0 if change == "reset" else 1 << 62
    for file in files.values():
        write(file, value)
    assert eventually(lambda: all(node.agent.value(name, device=d) == value * factor for d in sick))
    fell = 1 if change == "reset" else 0
    for device in sick:
        found = node.agent.value("tailwatch_source_resets_total", device=device)
        assert found == resets[device] + fell
        assert node.up(device) == 1
    assert node.counters() == node.whole
    for device, file in files.items():
        write(file, before[device])
    assert eventually(
        lambda: all(node.agent.value(name, device=d) == before[d] * factor for d in sick)
    )


def test_dead_device_is_asked_once_an_attempt(node: Node) -> None:
    """A device that fails is asked for one file each time, and no more often than backed off."""
    device = node.devices[0]
    node.agent.sicken(*node.rules(device, "ENODEV"))
    assert eventually(lambda: node.up(device) == 0)
    failed, reads = node.errors(device, "ENODEV"), node.agent.reads()
    assert eventually(lambda: node.errors(device, "ENODEV") >= failed + 3)
    more = node.errors(device, "ENODEV") - failed
    assert node.agent.reads() - reads <= more + 1


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
