"""The source xid: every event once, a burst as one incident, a restart repeats nothing."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import Samples, parse, total
from support.kmsg import FakeKmsg
from tailwatch.agents.lines import KernelLines
from tailwatch.agents.node.base import NodeConfig
from tailwatch.agents.node.collectors.xid import XidCollector
from tailwatch.agents.node.incidents import BURST_SECONDS, Incident, Incidents, Reporter, Series
from tailwatch.exposition import Snapshot

LINES = KernelLines()
GPU = "0000:3b:00.0"
FELL = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
EXCEPTION = "NVRM: Xid (PCI:0000:3b:00): 13, pid=12, name=python, Graphics Exception"
TEARDOWN = "NVRM: Xid (PCI:0000:{:02x}:00): 45, pid=12, name=python, Ch {:08x}"


def tree(root: Path) -> NodeConfig:
    """Return the configuration of a node with two GPUs, a switch, an EFA device and a NIC."""
    sysfs, procfs = root / "sys", root / "proc"
    for driver, address, name in (
        ("nvidia", GPU, ""),
        ("nvidia", "0000:5d:00.0", ""),
        ("nvidia-nvswitch", "0000:06:00.0", ""),
        ("efa", "0000:4f:00.0", "rdmap79s0"),
        ("mlx5_core", "0000:03:00.0", "mlx5_0"),
    ):
        device = sysfs / "bus/pci/devices" / address
        device.mkdir(parents=True, exist_ok=True)
        if name:
            (device / "infiniband" / name).mkdir(parents=True, exist_ok=True)
        (sysfs / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        link = sysfs / "bus/pci/drivers" / driver / address
        if not link.exists():
            link.symlink_to(device)
        (sysfs / "bus/pci/drivers" / driver / "bind").touch()
    (procfs / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
    boot = procfs / "sys/kernel/random/boot_id"
    if not boot.exists():
        boot.write_text("boot-1\n")
    (root / "log").mkdir(exist_ok=True)
    return NodeConfig(node="n", log=root / "log", sysfs=sysfs, procfs=procfs)


class Agent:
    """A collector on a fake kernel log; only the kernel log is read."""

    def __init__(self, root: Path, fake: FakeKmsg) -> None:
        config = tree(root)
        self.collector = XidCollector(config, opener=fake.opener, reader=fake.reader)
        self.kernel = self.collector.discover()[0]

    def read(self) -> None:
        """Read the kernel log once."""
        self.kernel.read()

    def samples(self) -> Samples:
        """Return what is exported."""
        snapshot = Snapshot()
        self.kernel.add_to(snapshot)
        self.collector.add_to(snapshot)
        return parse(snapshot.render())

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples with at least these labels; None without any."""
        return total(self.samples(), f"tailwatch_{name}", **labels)


@pytest.fixture
def fake() -> Iterator[FakeKmsg]:
    """A kernel log with a line in it that is no event."""
    made = FakeKmsg()
    made.log("Linux version 6.12", priority=5)
    yield made
    made.end()


@pytest.fixture
def agent(tmp_path: Path, fake: FakeKmsg) -> Agent:
    """An agent that has read the log once."""
    made = Agent(tmp_path, fake)
    made.read()
    return made


def test_counters_are_born_at_zero(agent: Agent) -> None:
    """Before anything happens every known code of every GPU has a counter at 0."""
    for gpu in (GPU, "0000:5d:00.0"):
        for code in ("13", "31", "48", "79", "119", "120"):
            assert agent.value("xid_events_total", device=gpu, xid=code) == 0
    assert agent.value("kernel_incidents_total", kind="xid", code="79") == 0
    assert agent.value("kernel_incidents_total", kind="sxid", code="20034") == 0
    assert agent.value("kernel_incidents_total", kind="efa", code="admin_queue_dead") == 0
    assert agent.value("xid_events_total", device=GPU, xid="149", severity="fatal") == 0
    assert agent.value("xid_events_total", device=GPU, xid="149", severity="warning") == 0
    assert agent.value("kernel_last_event_timestamp_seconds") is None


def test_an_eight_gpu_node_stays_within_its_series(tmp_path: Path, fake: FakeKmsg) -> None:
    """What is born at 0 is bounded: some 40 series a GPU and some 250 a node."""
    config = tree(tmp_path)
    for n in range(8):
        (config.sysfs / "bus/pci/drivers/nvidia" / f"0000:{n:02x}:1f.0").touch()
    agent = Agent(tmp_path, fake)
    agent.read()
    assert len(agent.samples()) < 10 * 50 + 260


def test_repeats_are_counted(agent: Agent, fake: FakeKmsg) -> None:
    """Three events of one code on one GPU count three, and nothing sticks to the last one."""
    for _ in range(3):
        fake.log(EXCEPTION)
        agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="13") == 3
    assert agent.value("xid_events_total", device="0000:5d:00.0", xid="13") == 0
    assert agent.value("kernel_incidents_total", kind="xid", code="13") == 1


def test_gpu_lost_is_counted_from_the_kernel_log(agent: Agent, fake: FakeKmsg) -> None:
    """A GPU off the bus counts as Xid 79, once, however many lines tell of it."""
    fake.log(FELL)
    fake.log("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
    fake.log("NVRM: The NVIDIA GPU 0000:3b:00.0")
    fake.log("NVRM: fallen off the bus and is not responding to commands.")
    agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="79", severity="fatal") == 1
    assert agent.value("kernel_incidents_total", code="79") == 1
    assert agent.value("kernel_events_total", kind="gpu") is None
    at = agent.value("kernel_last_event_timestamp_seconds", code="79", action="reboot_node")
    assert at == pytest.approx(time.time(), abs=60)


def test_gpu_lost_without_a_number_is_counted_as_well(agent: Agent, fake: FakeKmsg) -> None:
    """The line without a number alone counts as Xid 79."""
    fake.log("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
    agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="79") == 1


def test_teardown_of_a_job_is_one_incident(agent: Agent, fake: FakeKmsg) -> None:
    """Thousands of Xid 45 on all GPUs are one incident of the node, and none that pages."""
    for n in range(2000):
        fake.log(TEARDOWN.format(n % 8, n))
        if n % 500 == 499:
            agent.read()
    fake.log("NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=x, DBE")
    agent.read()
    assert agent.value("xid_events_total", xid="45") == 2000
    assert agent.value("kernel_incidents_total", kind="xid", code="45", severity="info") == 1
    assert agent.value("kernel_incidents_total", kind="xid", severity="fatal") == 1
    assert agent.value("kernel_incidents_total", kind="xid", code="48", severity="fatal") == 1


def test_nics_have_the_name_of_their_series(agent: Agent, fake: FakeKmsg) -> None:
    """EFA and mlx5 lines count under the RDMA device's name; those without a device on the node."""
    fake.log("efa 0000:4f:00.0: Admin queue is closed")
    fake.log(
        "mlx5_core 0000:03:00.0: wait_func:1195:(pid 1): X(0x104) timeout. "
        "Will cause a leak of a command resource"
    )
    fake.log("mlx5_core: INFO: synd 0x8: unrecoverable hardware error.")
    agent.read()
    assert agent.value("kernel_events_total", kind="efa", device="rdmap79s0") == 1
    assert agent.value("kernel_events_total", kind="mlx5", device="mlx5_0") == 1
    node = agent.value("kernel_events_total", code="unrecoverable_hardware_error", device="")
    assert node == 1


def test_switch_errors_are_no_xids(agent: Agent, fake: FakeKmsg) -> None:
    """SXid of a switch has its own metric."""
    fake.log("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up")
    agent.read()
    assert agent.value("sxid_events_total", device="0000:06:00.0", sxid="20034") == 1
    assert agent.value("xid_events_total", xid="20034") is None


def test_text_from_user_space_is_not_believed(agent: Agent, fake: FakeKmsg) -> None:
    """A record that a process wrote into the log is no event, whatever it says."""
    fake.log(FELL, priority=8 | 3)
    agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="79") == 0


def test_what_was_there_before_is_dated_and_not_counted(tmp_path: Path, fake: FakeKmsg) -> None:
    """The first agent of a node counts from its start on, and says when the last event was."""
    fake.log(FELL, microseconds=1)
    agent = Agent(tmp_path, fake)
    agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="79") == 0
    at = agent.value("kernel_last_event_timestamp_seconds", code="79")
    assert at == pytest.approx(time.time() - time.monotonic(), abs=5)
    fake.log(FELL)
    agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="79") == 1


def test_restarted_agent_counts_what_it_missed_and_nothing_twice(
    tmp_path: Path, fake: FakeKmsg
) -> None:
    """A restart neither repeats an event nor loses one that happened meanwhile."""
    first = Agent(tmp_path, fake)
    first.read()
    fake.log(EXCEPTION)
    first.read()
    first.kernel.close()
    fake.log(FELL)
    second = Agent(tmp_path, fake)
    second.read()
    assert second.value("xid_events_total", device=GPU, xid="13") == 0
    assert second.value("xid_events_total", device=GPU, xid="79") == 1
    assert second.value("kernel_last_event_timestamp_seconds", code="79") is not None
    second.kernel.read()
    second.kernel.close()
    third = Agent(tmp_path, fake)
    third.read()
    assert third.value("xid_events_total", xid="79") == 0


def test_after_a_boot_everything_is_new(tmp_path: Path, fake: FakeKmsg) -> None:
    """An agent that knew the node before counts what happened since the new boot."""
    before = Agent(tmp_path, fake)
    before.read()
    before.read()
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-2\n")
    booted = FakeKmsg()
    booted.log(FELL, microseconds=1)
    agent = Agent(tmp_path, booted)
    agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="79") == 1
    booted.end()


@pytest.mark.parametrize("content", [b"", b"{", b'{"boot": 1}', b"\xff\xfe"])
def test_damaged_position_is_as_good_as_none(
    tmp_path: Path, fake: FakeKmsg, content: bytes
) -> None:
    """A position file with nonsense in it starts the count anew and is replaced."""
    config = tree(tmp_path)
    path = config.log / "n.kmsg"
    path.write_bytes(content)
    fake.log(FELL)
    agent = Agent(tmp_path, fake)
    agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="79") == 0
    agent.read()
    assert json.loads(path.read_bytes())["boot"] == "boot-1"


def test_reading_once_leaves_no_trace(tmp_path: Path, fake: FakeKmsg) -> None:
    """A process that reads once and ends does not move the position of the agent."""
    agent = Agent(tmp_path, fake)
    agent.read()
    agent.kernel.close()
    assert list((tmp_path / "log").iterdir()) == []


def test_position_that_cannot_be_kept_does_not_blind(tmp_path: Path, fake: FakeKmsg) -> None:
    """Without a place for the position the log is read and counted all the same."""
    agent = Agent(tmp_path, fake)
    (tmp_path / "log").rmdir()
    for _ in range(3):
        fake.log(EXCEPTION)
        agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="13") == 2


def test_lost_records_are_counted(agent: Agent, fake: FakeKmsg) -> None:
    """A flood that overran the reader shows as lost records, and reading goes on."""
    fake.overrun(100)
    fake.log(FELL)
    agent.read()
    assert agent.value("kernel_log_records_lost_total") == 100
    assert agent.value("xid_events_total", device=GPU, xid="79") == 1


def test_series_go_when_nothing_tells_any_more(
    agent: Agent, fake: FakeKmsg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that has been blind for a while exports no counters that look calm."""
    fake.fail(errno.EPERM)
    with pytest.raises(PermissionError):
        agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="79") == 0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert agent.value("xid_events_total") is None
    agent.read()
    assert agent.value("xid_events_total", device=GPU, xid="79") == 0


def test_event_of_both_reporters_counts_once() -> None:
    """NVML and kernel log tell of the same event in either order; each event counts once."""
    orders: list[tuple[Reporter, Reporter]] = [("kernel", "nvml"), ("nvml", "kernel")]
    for first, second in orders:
        found = Incidents()
        finding = LINES.xid("13", GPU)
        for at in (0.0, 1200.0, 1800.0):
            found.count(finding, at, first)
            found.count(finding, at + 1.0, second)
        assert sum(found.events.values()) == 3
        assert sum(found.incidents.values()) == 3


def test_event_that_only_one_tells_of_counts_as_well() -> None:
    """Where one reporter is blind the other one's events all count."""
    found = Incidents()
    finding = LINES.xid("13", GPU)
    for at in (0.0, 1.0, 2.0):
        found.count(finding, at, "nvml")
    found.count(finding, 0.5, "kernel")
    assert sum(found.events.values()) == 3


def test_burst_is_one_incident_and_a_pause_ends_it() -> None:
    """Events closer than a minute are one incident; the next after a pause is another."""
    found = Incidents()
    finding = LINES.xid("31", GPU)
    firsts = [found.count(finding, at, "kernel") for at in (0.0, 50.0, 100.0, 161.0)]
    assert firsts == [True, False, False, True]
    assert found.incidents == {Incident("xid", "31", "warning"): 2}
    assert BURST_SECONDS == 60


def test_rack_of_teardowns_names_no_node() -> None:
    """The number of Xid 45 of a node says how many channels it had, and nothing about it."""
    counts = [13104, 11984, 11760, 1120]
    nodes = []
    for number in counts:
        node = Incidents()
        for n in range(number):
            node.count(LINES.xid("45", f"0000:{n % 8:02x}:00.0"), n / 1000, "kernel")
        nodes.append(node)
    assert all(node.incidents == {Incident("xid", "45", "info"): 1} for node in nodes)


def test_number_of_series_is_bounded() -> None:
    """However many codes and devices there seem to be, the series stay within a bound."""
    found = Incidents()
    for n in range(6000):
        found.count(LINES.xid(str(n), f"0000:{n % 200:02x}:00.0"), float(n), "kernel")
    assert len(found.events) <= 2001
    assert found.events[Series("xid", "", "other", "warning")] > 3000
    assert sum(found.events.values()) == 6000
