"""The source `host`: pressure, memory, cgroups, proxy threads, interfaces, and the canary."""

from __future__ import annotations

import ast
import ctypes
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.checkout import ROOT
from support.procs import eventually
from support.sources import Reading, value
from support.sysfs import Sysfs, efa_node, write
from tailwatch.agents.node import ethtool, host_threads
from tailwatch.agents.node.base import SourceError
from tailwatch.agents.node.canary import MESSAGE_BYTES, Canary, EchoServer, TcpTransport, canary
from tailwatch.agents.node.collectors.efa import EfaCollector
from tailwatch.agents.node.collectors.host import HostCollector
from tailwatch.agents.node.fabric_load import BUSY_BYTES_PER_SECOND, FabricLoad
from tailwatch.agents.node.host_threads import HostThreads, thread_name
from tailwatch.errors import UsageError

PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 total=250000"


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """What /proc shows of a host."""
    root = tmp_path / "proc"
    for resource in ("cpu", "memory", "io"):
        write(root / "pressure" / resource, PRESSURE)
    write(root / "meminfo", "MemTotal: 2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\nShmem: 4 kB")
    write(root / "vmstat", "nr_free_pages 1\noom_kill 3")
    return root


@pytest.fixture
def readings() -> Iterator[list[Reading]]:
    """A list; what is in it is closed."""
    made: list[Reading] = []
    yield made
    for reading in made:
        reading.close()


def host(sysfs: Path, procfs: Path, readings: list[Reading], **settings: object) -> Reading:
    """Read the source on a tree."""
    readings.append(Reading(sysfs, "host", procfs=procfs, **settings))
    return readings[-1]


def test_pressure_and_memory(tmp_path: Path, procfs: Path, readings: list[Reading]) -> None:
    """Waiting time by resource, memory by kind, and OOM kills, in base units."""
    samples = host(Sysfs(tmp_path / "sys").root, procfs, readings).samples()
    name = "tailwatch_host_pressure_seconds_total"
    assert value(samples, name, resource="cpu", share="some") == 1.5
    assert value(samples, name, resource="io", share="full") == 0.25
    assert value(samples, "tailwatch_host_memory_bytes", kind="available") == 1 << 20
    assert value(samples, "tailwatch_host_oom_kills_total") == 3


def test_kernel_without_pressure(tmp_path: Path, procfs: Path, readings: list[Reading]) -> None:
    """Where the kernel has no PSI its series are absent, and nothing is down."""
    for file in (procfs / "pressure").iterdir():
        file.unlink()
    samples = host(Sysfs(tmp_path / "sys").root, procfs, readings).samples()
    assert not any(name == "tailwatch_host_pressure_seconds_total" for name, _ in samples)
    assert value(samples, "tailwatch_source_up", device="pressure") == 1


def test_cgroups_of_pods(tmp_path: Path, procfs: Path, readings: list[Reading]) -> None:
    """Throttling and OOM kills come per pod, for both ways in which cgroups are named."""
    tree = Sysfs(tmp_path / "sys")
    names = (
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1a2b.slice",
        "kubepods/besteffort/pod3c4d",
    )
    for name in names:
        folder = tree.root / "fs/cgroup" / name
        write(folder / "cpu.stat", "usage_usec 9\nnr_throttled 4\nthrottled_usec 2500000")
        write(folder / "memory.events", "oom 1\noom_kill 2")
        write(folder / "container/cpu.stat", "nr_throttled 4\nthrottled_usec 2500000")
    samples = host(tree.root, procfs, readings).samples()
    metric = "tailwatch_cgroup_throttled_seconds_total"
    assert {
        dict(ls)["cgroup"]: v for (n, ls), v in samples.items() if n == metric
    } == dict.fromkeys(names, 2.5)
    assert value(samples, "tailwatch_cgroup_oom_kills_total", cgroup=names[0]) == 2
    assert value(samples, "tailwatch_host_cgroups_left_out") == 0


def test_too_many_cgroups(tmp_path: Path, procfs: Path, readings: list[Reading]) -> None:
    """Above 512 pods the rest has no series, and how many that are is said."""
    tree = Sysfs(tmp_path / "sys")
    for index in range(520):
        folder = tree.root / "fs/cgroup/kubepods" / f"pod{index:04x}"
        write(folder / "memory.events", "oom_kill 0")
    samples = host(tree.root, procfs, readings).samples()
    metric = "tailwatch_cgroup_oom_kills_total"
    assert sum(1 for name, _ in samples if name == metric) == 512
    assert value(samples, "tailwatch_host_cgroups_left_out") == 8


def test_interfaces(tmp_path: Path, procfs: Path, readings: list[Reading]) -> None:
    """Bytes and carrier of real interfaces; not of the loopback, nor of what is virtual."""
    tree = efa_node(tmp_path / "sys", "p4d.24xlarge")
    samples = host(tree.root, procfs, readings).samples()
    written = int((tree.root / "class/net/eth0/statistics/rx_bytes").read_text())
    name = "tailwatch_host_network_received_bytes_total"
    assert value(samples, name, interface="eth0") == written
    assert value(samples, "tailwatch_host_network_carrier", interface="eth0") == 1
    assert value(samples, name, interface="lo") is None


FALL_BACK = (10**6, 10**9)


@pytest.mark.parametrize(
    ("efa", "eni", "fell"),
    [
        pytest.param(40 * 10**9, 10**7, False, id="collectives over EFA"),
        pytest.param(0, 5 * 10**9, True, id="collectives over TCP"),
        pytest.param(0, 10**6, False, id="nothing to do"),
        pytest.param(40 * 10**9, 5 * 10**9, False, id="collectives over EFA and a checkpoint"),
    ],
)
def test_fall_back_to_tcp_is_a_fact(
    tmp_path: Path, procfs: Path, readings: list[Reading], efa: int, eni: int, fell: bool
) -> None:
    """EFA that stands still while the interface carries the collectives is told from all else."""
    tree = efa_node(tmp_path / "sys", "p5.48xlarge")
    reading = Reading(tree.root, "host", "efa", procfs=procfs)
    readings.append(reading)
    names = ("tailwatch_efa_tx_bytes_total", "tailwatch_host_network_transmitted_bytes_total")
    before = reading.samples()
    devices = sorted((tree.root / "class/infiniband").iterdir())
    for device in devices:
        file = device / "ports/1/hw_counters/tx_bytes"
        write(file, int(file.read_text()) + efa // len(devices))
    file = tree.root / "class/net/eth0/statistics/tx_bytes"
    write(file, int(file.read_text()) + eni)
    reading.again()
    after = reading.samples()
    # As the rule does it: increase of both over the same time, by node.
    over_efa, over_eni = (
        sum(v - before[key] for key, v in after.items() if key[0] == name) for name in names
    )
    flat, busy = FALL_BACK
    assert (over_efa < flat and over_eni > busy) == fell
    assert (over_efa, over_eni) == (efa, eni)


@pytest.fixture(scope="module")
def ena(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that answers ethtool's ioctl in place of the kernel; see ena.c."""
    library = tmp_path_factory.mktemp("ena") / "ena.so"
    source = ROOT / "tests/agents/ena.c"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror")
    subprocess.run(["cc", *flags, "-o", library, source], check=True)
    return library


def ask_ena(library: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Ask for the statistics of `ena0` in a process that has the library preloaded."""
    code = "from tailwatch.agents.node import ethtool; print(ethtool.statistics('ena0'))"
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "LD_PRELOAD": str(library), **environment},
    )


def test_allowances_come_through_the_ioctl_as_the_kernel_lays_it_out(ena: Path) -> None:
    """Names and 64-bit values of the ENA driver are read by the kernel's own structures."""
    found = ast.literal_eval(ask_ena(ena).stdout)
    assert found["bw_in_allowance_exceeded"] == 11
    assert found["bw_out_allowance_exceeded"] == 1 << 40
    assert found["conntrack_allowance_available"] == 136812
    assert len(found) == 9


def test_driver_without_statistics_is_an_error_of_the_ioctl(ena: Path) -> None:
    """What the driver refuses is an OSError with its errno."""
    refused = ask_ena(ena, ENA_ERRNO=str(errno.EOPNOTSUPP))
    assert refused.returncode == 1
    assert "OSError: [Errno 95]" in refused.stderr


def test_allowances_of_each_interface(
    tmp_path: Path, procfs: Path, readings: list[Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Used-up allowances are counted by interface; one that fails costs no other its series."""
    tree = efa_node(tmp_path / "sys", "p4d.24xlarge")
    for index in (1, 2):
        pci = tree.pci(f"0000:0{index + 1}:00.0", "0000:00:02.0", "0x1d0f", "0xec20", driver="ena")
        tree.interface(f"eth{index}", f"06:cf:de:ad:be:0{index}", pci=pci)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tree.root)

    def statistics(interface: str) -> dict[str, int]:
        if interface == "eth1":
            raise OSError(errno.EIO, "the device does not answer")
        names = ("bw_in", "bw_out", "pps", "conntrack", "linklocal")
        told = {f"{name}_allowance_exceeded": n for n, name in enumerate(names, 10)}
        return {**told, "conntrack_allowance_available": 5, "queue_0_tx_cnt": 7}

    monkeypatch.setattr(ethtool, "statistics", statistics)
    samples = host(tree.root, procfs, readings).samples()
    name = "tailwatch_host_network_allowance_exceeded_total"
    for interface in ("eth0", "eth2"):
        told = {
            dict(ls)["allowance"]: v
            for (n, ls), v in samples.items()
            if n == name and dict(ls)["interface"] == interface
        }
        assert told == {"bw_in": 10, "bw_out": 11, "pps": 12, "conntrack": 13, "linklocal": 14}
    assert not any(n == name and dict(ls)["interface"] == "eth1" for n, ls in samples)
    assert value(samples, "tailwatch_source_up", device="allowances/eth1") == 0
    errors = "tailwatch_source_errors_total"
    assert value(samples, errors, device="allowances/eth1", code="EIO") == 1
    received = "tailwatch_host_network_received_bytes_total"
    assert value(samples, received, interface="eth1") is not None


def test_kernel_is_not_asked_about_a_tree(
    tmp_path: Path, procfs: Path, readings: list[Reading]
) -> None:
    """Interfaces of a tree that is no mounted sysfs are none of this kernel's."""
    tree = efa_node(tmp_path / "sys", "p4d.24xlarge")
    samples = host(tree.root, procfs, readings).samples()
    assert not any("allowances" in dict(ls).get("device", "") for _, ls in samples)


def test_driver_statistics_come_from_the_kernel() -> None:
    """The real ioctl answers for a real interface, and an unknown one is an OSError."""
    for _, name in socket.if_nameindex():
        try:
            found = ethtool.statistics(name)
        except OSError:
            continue
        assert all(isinstance(v, int) and n.isprintable() for n, v in found.items())
    with pytest.raises(OSError, match="No such device"):
        ethtool.statistics("nowhere0")


@pytest.mark.parametrize(
    ("comm", "name"),
    [
        ("NCCL Progress 3", "NCCL Progress"),
        ("NCCL Service12", "NCCL Service"),
        ("uccl-engine-0", "uccl-engine"),
        ("nvshmem_proxy", "nvshmem_proxy"),
        ("python", ""),
        ("", ""),
    ],
)
def test_names_of_proxy_threads(comm: str, name: str) -> None:
    """Threads of communication libraries are known by name, with their numbers left out."""
    assert thread_name(comm) == name


def test_cpu_of_a_real_thread() -> None:
    """The CPU time of a thread with such a name counts from when it is first seen."""
    libc = ctypes.CDLL(None)
    ended, spinning = threading.Event(), threading.Event()

    def spin() -> None:
        libc.prctl(15, b"NCCL Progress 1", 0, 0, 0)
        spinning.set()
        while not ended.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    spinning.wait(10)
    proxies = HostThreads(Path("/proc"), Path("/nowhere"))

    def spent() -> tuple[float, float]:
        said = list(proxies.look())
        found = {n: v for n, v, labels in said if labels.get("thread") == "NCCL Progress"}
        return (
            found["tailwatch_host_proxy_thread_cpu_seconds_total"],
            found["tailwatch_host_proxy_threads"],
        )

    assert spent()[1] == 1
    assert eventually(lambda: spent()[0] > 0.05)
    ended.set()
    thread.join()
    assert eventually(lambda: spent()[1] == 0)
    assert spent()[0] > 0.05


def test_whether_the_fabric_manager_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that died is seen, although the fabric's state stays; elsewhere nothing is said."""
    monkeypatch.setattr(host_threads, "SCAN_SECONDS", 0.0)
    procfs, sysfs = tmp_path / "proc", tmp_path / "sys"
    (procfs / "self/ns").mkdir(parents=True)
    threads = HostThreads(procfs, sysfs)

    def running() -> list[float]:
        return [v for n, v, _ in threads.look() if n == "tailwatch_host_fabric_manager_running"]

    write(procfs / "41/task/41/comm", "nv-fabricmanage")
    assert running() == []
    (procfs / "self/ns/pid").symlink_to("pid:[4026531836]")
    assert running() == [1]
    (procfs / "41/task/41/comm").unlink()
    assert running() == [0]
    write(procfs / "42/task/42/comm", "nv-fabricmanage")
    assert running() == [1]
    threads = HostThreads(tmp_path / "proc", sysfs)
    (procfs / "42/task/42/comm").unlink()
    assert running() == []
    (sysfs / "bus/pci/drivers/nvidia-nvswitch").mkdir(parents=True)
    assert running() == [0]


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    """The answering side of the canary."""
    made = EchoServer("127.0.0.1:0")
    yield made
    made.close()


def test_canary_measures_round_trips(
    tmp_path: Path, procfs: Path, readings: list[Reading], echo: EchoServer
) -> None:
    """Each read adds its round trips to the peer's histogram."""
    tree = Sysfs(tmp_path / "sys")
    peers = (f"node-b={echo.address}",)
    reading = host(tree.root, procfs, readings, canary_peers=peers)
    samples = reading.samples()
    labels = {"peer": "node-b", "transport": "tcp", "load": "unknown"}
    first = value(samples, "tailwatch_fabric_canary_seconds_count", **labels)
    assert first is not None
    assert first >= 4
    assert value(samples, "tailwatch_fabric_canary_seconds_bucket", **labels, le="+Inf") == first
    total = value(samples, "tailwatch_fabric_canary_seconds_sum", **labels)
    assert total is not None
    assert 0 < total < first
    reading.again()
    assert (
        value(reading.samples(), "tailwatch_fabric_canary_seconds_count", **labels) or 0
    ) >= first + 4


def test_canary_tells_idle_from_busy(
    tmp_path: Path,
    procfs: Path,
    readings: list[Reading],
    echo: EchoServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Round trips count by what the devices of the node moved just before."""
    tree = efa_node(tmp_path / "sys", "p4d.24xlarge")
    monkeypatch.setattr(HostCollector, "interval", 60.0)
    monkeypatch.setattr(EfaCollector, "interval", 60.0)
    reading = Reading(
        tree.root, "host", "efa", procfs=procfs, canary_peers=(f"node-b={echo.address}",)
    )
    readings.append(reading)
    port = next(iter((tree.root / "class/infiniband").iterdir())) / "ports/1/hw_counters"
    files = (port / "rx_bytes", tree.root / "class/net/eth0/statistics/tx_bytes")

    def measured_while(moving: Path | None) -> dict[str, float]:
        for _ in range(3):
            if moving is not None:
                write(moving, int(moving.read_text()) + 10**13)
            reading.again()
        name = "tailwatch_fabric_canary_seconds_count"
        return {dict(ls)["load"]: v for (n, ls), v in reading.samples().items() if n == name}

    before = measured_while(None)
    assert before["idle"] > 0
    assert before["busy"] == 0
    over_efa = measured_while(files[0])
    assert over_efa["busy"] > 0
    assert measured_while(files[1])["busy"] > over_efa["busy"]


def test_load_of_the_fabric() -> None:
    """Rates add up over devices; a reset, and what is old, count for nothing."""
    now = [0.0]
    load = FabricLoad(clock=lambda: now[0])
    load.note("a", 0)
    load.note("b", 0)
    assert load.now() == "unknown"
    now[0] = 1.0
    load.note("a", int(BUSY_BYTES_PER_SECOND * 0.6))
    assert load.now() == "idle"
    load.note("b", int(BUSY_BYTES_PER_SECOND * 0.6))
    assert load.now() == "busy"
    now[0] = 2.0
    load.note("a", 0)
    load.note("b", int(BUSY_BYTES_PER_SECOND * 0.6))
    assert load.now() == "idle"
    now[0] = 60.0
    assert load.now() == "unknown"


def test_two_agents_measure_each_other(
    tmp_path: Path, procfs: Path, readings: list[Reading]
) -> None:
    """The canary that a collector answers on is one that another can measure."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    tree = Sysfs(tmp_path / "sys")
    host(tree.root, procfs, readings, canary_listen=address)
    samples = host(tree.root, procfs, readings, canary_peers=(f"a={address}",)).samples()
    assert value(samples, "tailwatch_source_up", device="canary/a/tcp") == 1


def test_peer_that_is_away(tmp_path: Path, procfs: Path, readings: list[Reading]) -> None:
    """A peer that nobody answers for is a part that is down, and the host is read as ever."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    tree = Sysfs(tmp_path / "sys")
    samples = host(tree.root, procfs, readings, canary_peers=(f"a={address}",)).samples()
    assert value(samples, "tailwatch_source_up", device="canary/a/tcp") == 0
    name = "tailwatch_source_errors_total"
    assert value(samples, name, device="canary/a/tcp", code="ECONNREFUSED") == 1
    assert value(samples, "tailwatch_host_oom_kills_total") == 3


def test_peer_that_comes_back(echo: EchoServer) -> None:
    """After the peer's restart the canary connects anew and keeps what it measured before."""
    port = int(echo.address.rpartition(":")[2])
    part = canary("n", f"a={echo.address}", FabricLoad())
    part.read()
    echo.close()
    with pytest.raises((OSError, SourceError)):
        part.read()
    again = EchoServer(f"127.0.0.1:{port}")
    part.read()
    part.close()
    again.close()


def test_wrong_echo_is_no_measurement() -> None:
    """A peer that answers with something else is an error and no fast round trip."""

    class Liar:
        name = "tcp"

        def round_trip(self, message: bytes) -> bytes:
            return b"x" * len(message)

        def close(self) -> None:
            """Do nothing."""

    part = Canary("n", "a", Liar(), FabricLoad())
    with pytest.raises(SourceError, match="something else"):
        part.read()


def test_echo_server_holds_nobody_up(echo: EchoServer) -> None:
    """A client that sends and never reads does not keep others from their echo."""
    host_name, port = echo.address.split(":")
    rude = socket.create_connection((host_name, int(port)))
    rude.setblocking(False)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        try:
            rude.send(b"x" * 65536)
        except (BlockingIOError, ConnectionError):
            break
    polite = TcpTransport(host_name, int(port))
    message = b"m" * MESSAGE_BYTES
    assert all(polite.round_trip(message) == message for _ in range(20))
    polite.close()
    rude.close()


def test_taken_address_is_bad_usage(echo: EchoServer) -> None:
    """An address that is taken is one clear line."""
    with pytest.raises(UsageError, match=r"--canary.listen-address"):
        EchoServer(echo.address)
