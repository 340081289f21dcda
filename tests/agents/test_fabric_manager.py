"""The fabric manager's log: each line once across rotation and restart, each event once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from support.agents import Samples, parse, total
from support.kmsg import FakeKmsg
from tailwatch.agents.node import log_tail
from tailwatch.agents.node.base import NodeConfig
from tailwatch.agents.node.collectors.xid import XidCollector
from tailwatch.agents.node.log_tail import LogTail
from tailwatch.exposition import Snapshot

STAMP = "[Jul 23 2024 07:53:55] [ERROR] [tid 841] "
FATAL = (
    f"{STAMP}detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 "
    "physical id 3 port 33\n"
)
MULTICAST = f"{STAMP}failed to find the GPU handle 5410063385821516767 in the multicast team\n"
IN_KERNEL = "nvidia-nvswitch1: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 33 LTSSM Fault Up"


def append(path: Path, text: str) -> None:
    """Write to the end of a log, as its daemon does."""
    with path.open("a") as file:
        file.write(text)


def test_what_was_there_is_passed_over_and_what_comes_is_read(tmp_path: Path) -> None:
    """Reading begins at the end of the log; a line is handed out once, and when it is whole."""
    log = tmp_path / "log"
    append(log, "old\n")
    tail = LogTail(log)
    assert tail.read() == []
    append(log, "one\ntw")
    assert tail.read() == ["one"]
    append(log, "o\n")
    assert tail.read() == ["two"]
    assert tail.read() == []
    tail.close()


def test_log_that_comes_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    """A log that is not there is an error of the read, and nothing of it is missed."""
    log = tmp_path / "log"
    tail = LogTail(log)
    with pytest.raises(FileNotFoundError):
        tail.read()
    append(log, "one\n")
    assert tail.read() == ["one"]
    tail.close()


def test_rotation_by_renaming_loses_nothing(tmp_path: Path) -> None:
    """The old file is read to its end, the new one from its beginning, also while it is missing."""
    log = tmp_path / "log"
    append(log, "")
    tail = LogTail(log)
    assert tail.read() == []
    append(log, "one\n")
    log.rename(tmp_path / "log.1")
    append(tmp_path / "log.1", "two\n")
    assert tail.read() == ["one", "two"]
    assert tail.read() == []
    append(log, "three\n")
    assert tail.read() == ["three"]
    tail.close()


def test_rotation_by_cutting_begins_anew(tmp_path: Path) -> None:
    """A log that was cut in place is read from its beginning."""
    log = tmp_path / "log"
    append(log, "a long line of the past\n")
    tail = LogTail(log)
    assert tail.read() == []
    os.truncate(log, 0)
    append(log, "one\n")
    assert tail.read() == ["one"]
    tail.close()


def test_reader_goes_on_where_another_was(tmp_path: Path) -> None:
    """A known position is gone on from; a file that is another one by now is read whole."""
    log = tmp_path / "log"
    append(log, "")
    first = LogTail(log)
    first.read()
    append(log, "one\nhalf")
    assert first.read() == ["one"]
    position = first.position
    first.close()
    append(log, " a line\n")
    assert LogTail(log, position).read() == ["half a line"]
    log.rename(tmp_path / "log.1")
    append(log, "other\n")
    assert LogTail(log, position).read() == ["other"]


def test_flood_and_endless_lines_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read takes a bounded part of the log, and a line without an end no more memory."""
    monkeypatch.setattr(log_tail, "MOST_BYTES", 1000)
    monkeypatch.setattr(log_tail, "LONGEST_LINE", 100)
    log = tmp_path / "log"
    append(log, "")
    tail = LogTail(log)
    tail.read()
    append(log, "x" * 5000 + "\n" + "line\n" * 300)
    found = []
    for _ in range(10):
        lines = tail.read()
        assert sum(map(len, lines)) <= 1100
        found += lines
    assert found[0] == "x" * 100
    assert found[1:] == ["line"] * 300
    tail.close()


class Agent:
    """A collector on a kernel log and a fabric manager's log."""

    def __init__(self, root: Path, kernel: FakeKmsg) -> None:
        (root / "state").mkdir(exist_ok=True)
        config = NodeConfig(
            node="n",
            log=root / "state",
            sysfs=root / "sys",
            procfs=root / "proc",
            fabricmanager_log=root / "fabricmanager.log",
        )
        self.config = config
        self.collector = XidCollector(config, opener=kernel.opener, reader=kernel.reader)
        self.kernel, self.fabric = self.collector.discover()

    def read(self) -> None:
        """Read both logs."""
        self.kernel.read()
        self.fabric.read()

    def samples(self) -> Samples:
        """Return what is exported."""
        snapshot = Snapshot()
        self.collector.add_to(snapshot)
        return parse(snapshot.render())

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples with at least these labels; None without any."""
        return total(self.samples(), f"tailwatch_{name}", **labels)


@pytest.fixture
def kernel() -> Iterator[FakeKmsg]:
    """A kernel log."""
    made = FakeKmsg()
    made.log("boot")
    yield made
    made.end()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A fabric manager's log with a past."""
    path = tmp_path / "fabricmanager.log"
    append(path, FATAL)
    return path


def test_errors_of_switches_and_of_the_manager_count(
    tmp_path: Path, kernel: FakeKmsg, log: Path
) -> None:
    """A switch error is an SXid of the switch; the manager's own failures have their own kind."""
    agent = Agent(tmp_path, kernel)
    agent.read()
    own = {"kind": "fabric_manager", "code": "multicast_setup_failed", "severity": "fatal"}
    assert agent.value("kernel_incidents_total", **own) == 0
    assert agent.value("sxid_events_total") is None
    append(log, f"{FATAL}{MULTICAST}{STAMP.replace('ERROR', 'INFO')}{MULTICAST}")
    agent.read()
    assert agent.value("sxid_events_total", sxid="20034", device="0000:86:00.0") == 1
    assert agent.value("kernel_incidents_total", **own) == 1
    assert agent.value("kernel_events_total", kind="fabric_manager", device="") == 1


@pytest.mark.parametrize("first", ["kernel", "fabric"])
def test_error_that_the_kernel_tells_of_as_well_counts_once(
    tmp_path: Path, kernel: FakeKmsg, log: Path, first: str
) -> None:
    """Whichever log is read first, one error of a switch is one event; a second one is a second."""
    agent = Agent(tmp_path, kernel)
    agent.read()
    for count in (1, 2):
        kernel.log(IN_KERNEL)
        append(log, FATAL)
        parts = [agent.kernel, agent.fabric]
        for part in parts if first == "kernel" else reversed(parts):
            part.read()
        assert agent.value("sxid_events_total", sxid="20034") == count


def test_restart_counts_what_it_missed_and_nothing_twice(
    tmp_path: Path, kernel: FakeKmsg, log: Path
) -> None:
    """A new agent goes on behind what the last one counted, also when the log was rotated."""
    first = Agent(tmp_path, kernel)
    first.read()
    append(log, FATAL)
    first.read()
    assert first.value("sxid_events_total") == 1
    first.fabric.close()
    log.rename(tmp_path / "fabricmanager.log.1")
    append(log, MULTICAST)
    second = Agent(tmp_path, kernel)
    second.read()
    assert second.value("sxid_events_total") is None
    assert second.value("kernel_events_total", kind="fabric_manager") == 1


def test_without_the_flag_there_is_no_such_part(tmp_path: Path, kernel: FakeKmsg) -> None:
    """A node without a fabric manager has neither part nor series of one."""
    agent = Agent(tmp_path, kernel)
    config = msgspec.structs.replace(agent.config, fabricmanager_log=None)
    collector = XidCollector(config, opener=kernel.opener, reader=kernel.reader)
    (part,) = collector.discover()
    part.read()
    snapshot = Snapshot()
    collector.add_to(snapshot)
    assert b"fabric_manager" not in snapshot.render()
