"""The source pods: device ids of every form, owners, and what a sick kubelet does not change."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import Samples, parse
from support.kubelet import FakeKubelet, claim, devices, grpc, pod
from tailwatch.agents.node.base import NodeConfig, SourceError
from tailwatch.agents.node.collectors.pods import PodsCollector
from tailwatch.agents.node.podresources import client as client_module
from tailwatch.agents.node.podresources.client import PodResources
from tailwatch.agents.node.podresources.device_id import parse_device_id
from tailwatch.agents.node.podresources.messages import get_request, parse_get, parse_list
from tailwatch.agents.node.podresources.wire import fields
from tailwatch.exposition import Snapshot

FIXTURES = Path(__file__).parent / "fixtures" / "podresources"
GPU_A = "GPU-00000000-0000-0000-0000-00000000000a"
GPU_B = "GPU-00000000-0000-0000-0000-00000000000b"
MIG_B = "MIG-00000000-0000-0000-0000-00000000000b"
BARE = "00000000-0000-0000-0000-00000000000c"
UID = "0a1b2c3d-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("resource", "text", "expected"),
    [
        ("nvidia.com/gpu", GPU_A, ("gpu", GPU_A, "", None)),
        ("nvidia.com/gpu.shared", f"{GPU_A}::3", ("gpu", GPU_A, "", "3")),
        ("nvidia.com/gpu", "GPU-0::0", ("gpu", "GPU-0", "", "0")),
        ("nvidia.com/mig-1g.10gb", MIG_B, ("mig", MIG_B, "", None)),
        ("nvidia.com/mig-1g.10gb.shared", f"{MIG_B}::7", ("mig", MIG_B, "", "7")),
        ("nvidia.com/mig-1g.10gb", f"{MIG_B}::0", ("mig", MIG_B, "", "0")),
        ("nvidia.com/gpu", f"MIG-{GPU_A}/12/0", ("gpu", GPU_A, "12", None)),
        ("nvidia.com/gpu", f"{BARE}::2", ("gpu", BARE, "", "2")),
        ("nvidia.com/gpu", f"{BARE}::", ("gpu", BARE, "", "")),
        ("nvidia.com/gpu", f"{MIG_B}::", ("mig", MIG_B, "", "")),
        ("nvidia.com/gpu", "nvidia0", ("minor", "0", "", None)),
        ("nvidia.com/gpu", "nvidia0/vgpu1", ("minor", "0", "", "1")),
        ("nvidia.com/gpu", "nvidia0/gi3", ("minor", "0", "3", None)),
        ("nvidia.com/gpu", "nvidia0/gi0", ("minor", "0", "0", None)),
        ("nvidia.com/gpu", "nvidia0/gi3/vgpu0", ("minor", "0", "3", "0")),
        ("nvidia.com/gpu", "nvidia0/gi0/vgpu1", ("minor", "0", "0", "1")),
        ("nvidia.com/gpu", "0/vgpu", ("minor", "0", "", "")),
        ("vpc.amazonaws.com/efa", "rdmap79s0", ("efa", "rdmap79s0", "", None)),
        ("nvidia.com/a100", GPU_A, ("gpu", GPU_A, "", None)),
        ("gpu.nvidia.com", "gpu-3", ("minor", "3", "", None)),
        ("dra.net", "pci-0000-4f-00-0", ("pci", "0000:4f:00.0", "", None)),
        ("nvidia.com/gpu", "something else", ("unknown", "something else", "", None)),
        ("", "", None),
    ],
)
def test_device_ids(resource: str, text: str, expected: tuple[str, ...] | None) -> None:
    """Every form of a device id gives its device, its part and its replica."""
    found = parse_device_id(resource, text)
    assert (None if found is None else tuple(found)) == expected


@given(st.text(max_size=80), st.text(max_size=120))
def test_no_device_id_breaks_the_parser(resource: str, text: str) -> None:
    """Whatever the id, there is an answer."""
    parse_device_id(resource, text)


def test_messages_are_read_as_protobuf_wrote_them() -> None:
    """Messages of Google's own protobuf, with every field set, are read as they are meant."""
    first, idle = parse_list((FIXTURES / "list.bin").read_bytes())
    worker, sidecar = first.containers
    assert (first.namespace, first.name) == ("rl", "train-0")
    assert [(h.resource, h.device, h.claim) for h in worker.devices] == [
        ("nvidia.com/gpu", GPU_A, False),
        ("nvidia.com/gpu", GPU_B, False),
        ("vpc.amazonaws.com/efa", "rdmap79s0", False),
        ("dra.net", "pci-0000-50-00-0", True),
    ]
    assert worker.devices[3].pool == "node-a"
    assert (worker.name, sidecar.name, sidecar.devices) == ("worker", "sidecar", ())
    assert (idle.namespace, idle.name, idle.containers) == ("kube-system", "idle", ())
    assert parse_get((FIXTURES / "get.bin").read_bytes()) == first
    assert get_request("rl", "train-0") == (FIXTURES / "get-request.bin").read_bytes()


@given(st.binary(max_size=300))
def test_nonsense_is_a_value_error(data: bytes) -> None:
    """Bytes that are no message raise ValueError and nothing else."""
    for parser in (parse_list, parse_get, lambda data: list(fields(data))):
        try:
            parser(data)
        except ValueError:
            continue


@given(st.integers(0, 400))
def test_message_cut_anywhere_never_invents(cut: int) -> None:
    """A message that ends in the middle is refused, or has fewer pods, never other ones."""
    data = (FIXTURES / "list.bin").read_bytes()
    try:
        found = parse_list(data[:cut])
    except ValueError:
        return
    whole = parse_list(data)
    assert found == whole[: len(found)]


class Agent:
    """A collector and the kubelet it asks."""

    def __init__(self, root: Path) -> None:
        (root / "kubelet").mkdir()
        self.root = root
        self.kubelet = FakeKubelet(root / "kubelet" / "k.sock")
        self.logs = root / "pods"
        config = NodeConfig(
            node="n",
            podresources=self.kubelet.socket,
            sysfs=root / "sys",
            procfs=root / "proc",
        )
        self.collector = PodsCollector(config, pod_logs=self.logs)
        (self.part,) = self.collector.discover()

    def samples(self) -> Samples:
        """Return what is exported."""
        snapshot = Snapshot()
        self.part.add_to(snapshot)
        self.collector.add_to(snapshot)
        return parse(snapshot.render())

    def owners(self) -> list[tuple[str, str]]:
        """Return device and pod of each mapping, in order."""
        found = []
        for (name, labels), _ in self.samples().items():
            have = dict(labels)
            if name == "tailwatch_gpu_pod_info":
                part = f"/{have['gpu_instance']}" if have.get("gpu_instance") else ""
                device = have.get("uuid") or have.get("mig_uuid", "")
                found.append((f"{device}{part}", have["pod"]))
            elif name == "tailwatch_efa_pod_info":
                found.append((have["device"], have["pod"]))
        return sorted(found)

    def value(self, name: str) -> float | None:
        """Return the sum of the samples of a metric; None without any."""
        found = [v for (of, _), v in self.samples().items() if of == f"tailwatch_{name}"]
        return sum(found) if found else None


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """A collector on a kubelet without pods."""
    made = Agent(tmp_path)
    yield made
    made.part.close()
    made.kubelet.stop()


def test_devices_are_mapped_to_their_pods(agent: Agent) -> None:
    """GPUs, MIG devices and EFA devices each have their owner, others are no business of ours."""
    agent.kubelet.pods = [
        pod("a", devices("nvidia.com/gpu", GPU_A), devices("vpc.amazonaws.com/efa", "rdmap79s0")),
        pod("b", devices("nvidia.com/mig-1g.10gb", MIG_B), devices("example.com/fpga", "f0")),
        pod("c", devices("nvidia.com/gpu", f"MIG-{GPU_B}/12/0")),
    ]
    agent.part.read()
    assert agent.owners() == [(GPU_A, "a"), (f"{GPU_B}/12", "c"), (MIG_B, "b"), ("rdmap79s0", "a")]
    assert agent.value("pod_attribution_up") == 1
    assert agent.value("pod_devices_unmapped") is None


def test_shared_gpu_has_all_its_owners(agent: Agent) -> None:
    """Replicas of one GPU are one GPU with several owners, one series a container."""
    agent.kubelet.pods = [
        pod("b", devices("nvidia.com/gpu.shared", f"{GPU_A}::0", f"{GPU_A}::1")),
        pod("a", devices("nvidia.com/gpu.shared", f"{GPU_A}::3")),
    ]
    agent.part.read()
    assert agent.owners() == [(GPU_A, "a"), (GPU_A, "b")]
    before = list(agent.samples())
    agent.kubelet.pods.reverse()
    agent.part.read()
    assert list(agent.samples()) == before
    assert "Get" not in agent.kubelet.calls


def test_minor_numbers_are_found_in_the_drivers_files(agent: Agent) -> None:
    """Ids by minor number become the UUID the driver tells; without it they are unmapped."""
    agent.kubelet.pods = [
        pod("a", devices("nvidia.com/gpu", "nvidia3/gi1/vgpu0")),
        pod("b", devices("nvidia.com/gpu", "nvidia9", "what is this")),
    ]
    agent.part.read()
    assert agent.owners() == []
    assert agent.value("pod_devices_unmapped") == 3
    folder = agent.root / "proc/driver/nvidia/gpus/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text(
        f"Model: \t\t NVIDIA H100\nGPU UUID: \t {GPU_B}\nBus Location: \t 0000:3b:00.0\n"
        "Device Minor: \t 3\n"
    )
    agent.part.read()
    assert agent.owners() == [(f"{GPU_B}/1", "a")]
    assert agent.value("pod_devices_unmapped") == 2


def test_claims_are_mapped_and_may_be_shared(agent: Agent) -> None:
    """Devices of a claim are mapped by PCI address, to every pod that shares them."""
    (agent.root / "sys/bus/pci/devices/0000:4f:00.0/infiniband/rdmap79s0").mkdir(parents=True)
    agent.kubelet.pods = [
        pod("a", claim("dra.net", "pci-0000-4f-00-0")),
        pod("b", claim("dra.net", "pci-0000-4f-00-0"), claim("gpu.nvidia.com", "gpu-0-mig-1g")),
    ]
    agent.part.read()
    assert agent.owners() == [("rdmap79s0", "a"), ("rdmap79s0", "b")]
    assert agent.value("pod_devices_unmapped") == 1
    assert "Get" not in agent.kubelet.calls


def test_claim_of_an_interface_is_the_device_behind_it(agent: Agent) -> None:
    """A claim may name an RDMA device or its interface; an interface without one is no device."""
    sysfs = agent.root / "sys"
    (sysfs / "class/infiniband/rdmap79s0").mkdir(parents=True)
    (sysfs / "class/net/eth3/device/infiniband/rdmap80s0").mkdir(parents=True)
    (sysfs / "class/net/eth0/device").mkdir(parents=True)
    agent.kubelet.pods = [
        pod(name, claim("dra.net", device))
        for name, device in (("a", "rdmap79s0"), ("b", "eth3"), ("c", "eth0"), ("d", "../../etc"))
    ]
    agent.part.read()
    assert agent.owners() == [("rdmap79s0", "a"), ("rdmap80s0", "b")]
    assert agent.value("pod_devices_unmapped") == 2


def test_pod_that_ended_loses_its_devices(agent: Agent) -> None:
    """A pod that kubelet lists no more has no series at the next read."""
    agent.kubelet.pods = [pod("a", devices("nvidia.com/gpu", GPU_A))]
    agent.part.read()
    agent.kubelet.pods = []
    agent.part.read()
    assert agent.owners() == []
    assert agent.value("pod_attribution_up") == 1


def test_finished_pod_that_is_still_listed_has_no_devices(agent: Agent) -> None:
    """A pod without a cgroup has finished, also where kubelet goes on listing it."""
    agent.kubelet.pods = [
        pod("old", devices("nvidia.com/gpu", GPU_A)),
        pod("new", devices("nvidia.com/gpu", GPU_B)),
        pod("unseen", devices("nvidia.com/gpu", MIG_B)),
    ]
    (agent.logs / f"rl_old_{UID}").mkdir(parents=True)
    (agent.logs / "rl_new_11111111-1111-2222-3333-444455556666").mkdir()
    slices = agent.root / "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice"
    (slices / "kubepods-burstable-pod11111111_1111_2222_3333_444455556666.slice").mkdir(
        parents=True
    )
    agent.part.read()
    assert agent.owners() == [(GPU_B, "new"), (MIG_B, "unseen")]


def test_two_owners_of_a_whole_device_are_settled_by_kubelet(agent: Agent) -> None:
    """Where a whole device has two owners, the one that kubelet does not know alone is left out."""
    agent.kubelet.pods = [
        pod("old", devices("nvidia.com/gpu", GPU_A)),
        pod("new", devices("nvidia.com/gpu", GPU_A)),
    ]
    agent.kubelet.gone = {"old"}
    agent.part.read()
    assert agent.owners() == [(GPU_A, "new")]
    agent.kubelet.gone = set()
    agent.part.read()
    assert agent.owners() == [(GPU_A, "new"), (GPU_A, "old")]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("RESOURCE_EXHAUSTED", "rejected by rate limit"),
        ("INTERNAL", "boom"),
        ("UNIMPLEMENTED", "no such method"),
        ("FAILED_PRECONDITION", "not yet"),
    ],
)
def test_failed_look_up_is_not_unallocated(agent: Agent, code: str, text: str) -> None:
    """An error names its status, keeps the last mapping and says that it is not fresh."""
    agent.kubelet.pods = [pod("a", devices("nvidia.com/gpu", GPU_A))]
    agent.part.read()
    agent.kubelet.refuse(grpc.StatusCode[code], text)
    with pytest.raises(SourceError, match=text) as raised:
        agent.part.read()
    assert raised.value.code == code
    assert agent.owners() == [(GPU_A, "a")]
    assert agent.value("pod_attribution_up") == 0
    assert (agent.value("pod_attribution_age_seconds") or 0) > 0
    agent.kubelet.answer = None
    agent.part.read()
    assert agent.value("pod_attribution_up") == 1


def test_slow_kubelet_is_given_up_on(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet that does not answer in time fails the read and nothing else."""
    monkeypatch.setattr(client_module, "TIMEOUT_SECONDS", 0.3)
    agent.kubelet.hang()
    started = time.monotonic()
    with pytest.raises(SourceError) as raised:
        agent.part.read()
    assert raised.value.code == "DEADLINE_EXCEEDED"
    assert time.monotonic() - started < 10
    assert agent.value("pod_attribution_up") == 0


def test_answer_that_is_too_big_is_refused(agent: Agent) -> None:
    """An answer above 16 MiB is an error and not a growing agent."""
    agent.kubelet.answer = lambda context: bytes(17 << 20)
    with pytest.raises(SourceError) as raised:
        agent.part.read()
    assert raised.value.code == "RESOURCE_EXHAUSTED"


def test_answer_that_is_no_message_is_refused(agent: Agent) -> None:
    """An answer that is no message fails the read with its own code."""
    agent.kubelet.answer = lambda context: b"\xff\xff\xff"
    with pytest.raises(SourceError) as raised:
        agent.part.read()
    assert raised.value.code == "MALFORMED"


def test_huge_but_possible_answer_is_bounded(agent: Agent) -> None:
    """Thousands of owners give a bounded number of series, and a number that says so."""
    uuids = [f"GPU-00000000-0000-0000-0000-{n:012x}" for n in range(5000)]
    agent.kubelet.pods = [pod(f"p{n}", devices("nvidia.com/gpu", u)) for n, u in enumerate(uuids)]
    agent.part.read()
    assert len(agent.owners()) == 1024
    assert agent.value("pod_series_dropped") == 5000 - 1024


def test_kubelet_that_was_started_again_is_found_again(agent: Agent) -> None:
    """A dead kubelet fails the read; a new socket is connected to at once."""
    agent.kubelet.pods = [pod("a", devices("nvidia.com/gpu", GPU_A))]
    agent.part.read()
    agent.kubelet.stop()
    with pytest.raises((SourceError, OSError)):
        agent.part.read()
    assert agent.value("pod_attribution_up") == 0
    agent.kubelet.start()
    agent.part.read()
    assert agent.owners() == [(GPU_A, "a")]


def test_socket_without_kubelet_is_unavailable(tmp_path: Path) -> None:
    """A socket file that nobody serves is UNAVAILABLE."""
    path = tmp_path / "k.sock"
    path.touch()
    with pytest.raises(SourceError) as raised:
        PodResources(path).list()
    assert raised.value.code == "UNAVAILABLE"


def test_missing_package_is_a_source_that_is_down(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without grpcio the read says so, and the agent goes on."""
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ImportError):
        importlib.import_module("grpc")
    with pytest.raises(SourceError) as raised:
        agent.part.read()
    assert raised.value.code == "PACKAGE_MISSING"


def test_node_without_kubelet_has_no_such_source(tmp_path: Path) -> None:
    """Where there is no kubelet nothing is down and nothing is exported."""
    config = NodeConfig(node="n", podresources=tmp_path / "none" / "k.sock")
    collector = PodsCollector(config)
    assert list(collector.discover()) == []
    snapshot = Snapshot()
    collector.add_to(snapshot)
    assert snapshot.render() == b""
