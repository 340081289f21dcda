"""The source `processes`: GPU memory by pod, and what is not guessed about it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from support.nvml.fixtures import Node, check_with_promtool, uuid_of, value, values
from tailwatch.agents.node.cgroups import NO_POD, PodName, pods_of_processes
from tailwatch.agents.node.collectors.processes import GpuProcess, ProcessesCollector, holdings
from tailwatch.exposition import Snapshot

GIB = 1 << 30
N_A = (1 << 64) - 1
UIDS = {n: f"0a1b2c3d-1111-2222-3333-44445555000{n}" for n in (1, 2, 3)}
MEMORY, PROCESSES = "tailwatch_gpu_pod_memory_bytes", "tailwatch_gpu_pod_processes"


class Host:
    """What /proc and kubelet's log directory show of the processes 1001 to 1004."""

    def __init__(self, root: Path, *, host_ids: bool = True) -> None:
        self.procfs = root / "proc"
        self.logs = root / "pods"
        (self.procfs / "self/ns").mkdir(parents=True)
        namespace = 4026531836 if host_ids else 4026532999
        (self.procfs / "self/ns/pid").symlink_to(f"pid:[{namespace}]")
        for number in (1, 2):
            (self.logs / f"rl_pod{number}_{UIDS[number]}").mkdir(parents=True)
        for pid, uid in ((1001, UIDS[1]), (1002, UIDS[2].replace("-", "_")), (1003, UIDS[3])):
            (self.procfs / str(pid)).mkdir()
            path = f"/kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-5f.scope"
            (self.procfs / str(pid) / "cgroup").write_text(f"0::{path}\n")

    def collector(self, node: Node) -> ProcessesCollector:
        """Return a collector on this host."""
        node.config = msgspec.structs.replace(node.config, procfs=self.procfs)
        return ProcessesCollector(node.config, pod_logs=self.logs)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host whose process ids the agent sees."""
    return Host(tmp_path)


def test_processes_are_mapped_by_known_uids_only() -> None:
    """A process of no known pod has none, and a pod without uid never gets one."""
    one, two, three = (PodName("rl", f"pod{n}") for n in (1, 2, 3))
    found = pods_of_processes(
        {1001: "uid-1", 1002: "uid-2", 1003: "uid-unknown", 1004: ""},
        {"uid-1": one, "uid-2": two, "": three},
    )
    assert found == {1001: one, 1002: two}


def test_memory_without_a_number_is_none() -> None:
    """What NVML does not know is left out, however it says so; a process counts all the same."""
    one = PodName("rl", "pod1")
    listed = [GpuProcess(1001, "", 9 * GIB), GpuProcess(1001, "", None), GpuProcess(7, "", None)]
    assert holdings(listed, {1001: one}) == [
        ("", NO_POD, 1, None),
        ("", one, 2, 9 * GIB),
    ]


def test_memory_of_pods_and_of_nobody(gpu_node: Node, host: Host) -> None:
    """Each pod has its processes' memory; unknown and ended processes count under no pod."""
    gpu_node.has(
        "h100",
        f"process 0 1001 {9 * GIB}", f"process 0 1002 {3 * GIB}", f"process 0 1003 {GIB}",
        f"process 0 1004 {2 * GIB}", f"process 1 1001 {GIB}", f"process 2 1001 {N_A}",
    )  # fmt: skip
    said = gpu_node.read(host.collector(gpu_node))
    held = {
        (dict(labels)["namespace"], dict(labels)["pod"]): v
        for (name, labels), v in said.items()
        if name == MEMORY and dict(labels)["uuid"] == uuid_of(0)
    }
    assert held == {("rl", "pod1"): 9 * GIB, ("rl", "pod2"): 3 * GIB, ("", ""): 3 * GIB}
    assert value(said, PROCESSES, uuid=uuid_of(0), pod="") == 2
    assert value(said, MEMORY, uuid=uuid_of(1), pod="pod1") == GIB
    assert values(said, MEMORY, uuid=uuid_of(2)) == []
    assert value(said, PROCESSES, uuid=uuid_of(2), pod="pod1") == 1
    assert values(said, PROCESSES, uuid=uuid_of(3)) == []
    assert value(said, "tailwatch_gpu_process_mapping_up") == 1


def test_without_the_hosts_process_ids_nothing_is_guessed(
    gpu_node: Node, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process of the same number in the agent's own namespace is another one: said once."""
    host = Host(tmp_path, host_ids=False)
    gpu_node.has("h100", f"process 0 1001 {9 * GIB}")
    collector = host.collector(gpu_node)
    for _ in range(3):
        said = gpu_node.read(collector)
    assert value(said, MEMORY, uuid=uuid_of(0), pod="", namespace="") == 9 * GIB
    assert len(values(said, MEMORY)) == 1
    assert value(said, "tailwatch_gpu_process_mapping_up") == 0
    assert capfd.readouterr().err.count("without the host's process ids") == 1


def test_processes_of_gpu_instances(gpu_node: Node, host: Host) -> None:
    """In MIG mode the GPU lists them all: each counts under its GPU instance."""
    gpu_node.has("h100-mig", f"process 0 1001 {GIB} 9 0", f"process 0 1001 {3 * GIB} 2 0")
    said = gpu_node.read(host.collector(gpu_node))
    assert value(said, MEMORY, gpu_instance="9", pod="pod1") == GIB
    assert value(said, MEMORY, gpu_instance="2", pod="pod1") == 3 * GIB
    assert len(values(said, MEMORY)) == 2


def test_driver_that_does_not_list_processes(gpu_node: Node, host: Host) -> None:
    """A refusal has no series but its own count, and is no pod without memory."""
    gpu_node.has("h100", "fail 0 nvmlDeviceGetComputeRunningProcesses_v3 3",
                 f"process 1 1001 {GIB}")  # fmt: skip
    said = gpu_node.read(host.collector(gpu_node))
    assert values(said, MEMORY, uuid=uuid_of(0)) == []
    assert values(said, MEMORY, uuid=uuid_of(1)) == [GIB]


def test_exposition_is_as_the_catalogue_says(gpu_node: Node, host: Host) -> None:
    """Every metric of the source is in the catalogue, and promtool finds no fault."""
    gpu_node.has(
        "h100", f"process 0 1001 {GIB}", "fail 1 nvmlDeviceGetComputeRunningProcesses_v3 4"
    )
    collector = host.collector(gpu_node)
    check_with_promtool(gpu_node.exposition(collector))
    snapshot = Snapshot()
    collector.add_to(snapshot)
    assert b"tailwatch_gpu_process_mapping_up" in snapshot.render()
