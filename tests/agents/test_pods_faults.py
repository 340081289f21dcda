"""A sick kubelet or a flooded kernel log under the agent's watch: named, and alone with it."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import Samples, parse
from support.kmsg import FakeKmsg
from support.kubelet import FakeKubelet, devices, grpc, pod
from support.procs import eventually
from tailwatch.agents.node.base import NodeConfig
from tailwatch.agents.node.collectors.pods import PodsCollector
from tailwatch.agents.node.collectors.xid import XidCollector
from tailwatch.agents.node.watch import Watch

GPU = "GPU-00000000-0000-0000-0000-00000000000a"


class Node:
    """A node with kubelet and kernel log under a watch."""

    def __init__(self, root: Path) -> None:
        (root / "kubelet").mkdir()
        (root / "log").mkdir()
        self.kubelet = FakeKubelet(root / "kubelet" / "k.sock")
        self.kubelet.pods = [pod("a", devices("nvidia.com/gpu", GPU))]
        self.kernel = FakeKmsg()
        self.kernel.log("boot")
        self.flood: Iterator[int] | None = None
        config = NodeConfig(
            node="n",
            podresources=self.kubelet.socket,
            sysfs=root / "sys",
            procfs=root / "proc",
            log=root / "log",
        )
        pods = PodsCollector(config, pod_logs=root / "pods")
        xid = XidCollector(config, opener=self.kernel.opener, reader=self._read)
        self.watch = Watch([pods, xid], config, stale_floor=0.0)
        self.watch.start()

    def _read(self, fd: int, size: int) -> bytes:
        if self.flood is not None:
            number = next(self.flood)
            return f"4,{number},{number},-;something of no interest\n".encode()
        return self.kernel.reader(fd, size)

    def samples(self) -> Samples:
        """Return what the agent says now."""
        return parse(self.watch.render().render())

    def up(self, source: str, device: str = "") -> float | None:
        """Return whether a source is up."""
        for (name, labels), value in self.samples().items():
            have = dict(labels)
            if name == "tailwatch_source_up" and have["source"] == source:
                have.setdefault("device", "")
                if have["device"] == device:
                    return value
        return None

    def has(self, name: str) -> bool:
        """Whether there is any such sample."""
        return any(of == name for of, _ in self.samples())

    def codes(self, source: str) -> set[str]:
        """Return the error codes a source has shown."""
        return {
            dict(labels)["code"]
            for name, labels in self.samples()
            if name == "tailwatch_source_errors_total" and dict(labels)["source"] == source
        }


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node that is well, read often."""
    for kind in (PodsCollector, XidCollector):
        monkeypatch.setattr(kind, "interval", 0.1)
        monkeypatch.setattr(kind, "deadline", 0.5)
    made = Node(tmp_path)
    assert eventually(lambda: made.up("pods") == 1 and made.up("xid", "kmsg") == 1)
    assert made.has("tailwatch_gpu_pod_info")
    yield made
    made.kubelet.stop()
    made.watch.close()
    made.kernel.end()


@pytest.mark.parametrize("fault", ["dead", "slow", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"])
def test_sick_kubelet(node: Node, fault: str) -> None:
    """Kubelet's fault is named, its old mapping goes, all else stays, and it recovers."""
    if fault == "dead":
        node.kubelet.stop()
        wanted = {"UNAVAILABLE", "ENOENT"}
    elif fault == "slow":
        node.kubelet.hang()
        wanted = {"hung"}
    else:
        node.kubelet.refuse(grpc.StatusCode[fault], "as told")
        wanted = {fault}
    assert eventually(lambda: node.up("pods") == 0)
    assert node.codes("pods") & wanted
    assert eventually(lambda: not node.has("tailwatch_gpu_pod_info"))
    assert node.up("xid", "kmsg") == 1
    assert node.has("tailwatch_kernel_incidents_total")
    if fault == "dead":
        node.kubelet.start()
    node.kubelet.answer = None
    node.kubelet.released.set()
    assert eventually(lambda: node.up("pods") == 1)
    assert eventually(lambda: node.has("tailwatch_gpu_pod_info"))


def test_flood_of_the_kernel_log(node: Node) -> None:
    """A log that never ends is read in bounded portions; its source and all others stay up."""
    node.flood = itertools.count(100)
    before = [v for (n, _), v in node.samples().items() if n.endswith("log_records_total")]

    def grew() -> bool:
        now = [v for (n, _), v in node.samples().items() if n.endswith("log_records_total")]
        return now > [before[0] + 20_000]

    assert eventually(grew)
    assert (node.up("pods"), node.up("xid", "kmsg")) == (1, 1)
    node.flood = None


@pytest.mark.parametrize("number", [errno.EPERM, errno.EIO, errno.ENODEV])
def test_kernel_log_that_cannot_be_read(node: Node, number: int) -> None:
    """A log that fails is named with its errno, and read again when it can be."""
    node.kernel.fail(number)
    assert eventually(lambda: errno.errorcode[number] in node.codes("xid"))
    assert node.up("pods") == 1
    assert eventually(lambda: node.up("xid", "kmsg") == 1)
    node.kernel.log("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    assert eventually(lambda: node.has("tailwatch_xid_events_total"))
