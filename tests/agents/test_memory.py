"""Memory and series: what thousands of cycles leave behind, and how much a full node shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.agents import Agent
from support.checkout import ROOT
from support.kubelet import FakeKubelet, devices, pod
from support.p5 import p5_node
from support.procs import eventually
from support.sysfs import efa_node


@pytest.mark.timeout(600)
def test_cycles_leave_nothing_behind(tmp_path: Path) -> None:
    """After 5,000 cycles on the agent's own threads, with gRPC, memory is small and steady."""
    efa_node(tmp_path / "sys", "p4d.24xlarge")
    kubelet = FakeKubelet(tmp_path / "kubelet.sock")
    kubelet.pods = [pod("trainer-0", devices("vpc.amazonaws.com/efa", "rdmap17s0"))]
    try:
        done = subprocess.run(
            [
                *(sys.executable, ROOT / "bench/soak.py", "5000"),
                *("--path.sysfs", tmp_path / "sys", "--podresources.socket", kubelet.socket),
                *("--collector.disable-defaults", "--collector.efa", "--collector.infiniband"),
                "--collector.pods",
            ],
            capture_output=True,
            check=True,
            timeout=500,
        )
    finally:
        kubelet.stop()
    assert "List" in kubelet.calls
    points = json.loads(done.stdout)
    assert points[-1][1] <= 80
    # Pages come in lumps; a leak of one label text a cycle would be several MiB.
    assert points[-1][1] - points[len(points) // 5][1] < 1.0


def test_series_of_a_full_node(tmp_path: Path) -> None:
    """A node with 8 H100, 32 EFA devices, pods and ranks shows at most 3,500 series."""
    with p5_node(tmp_path) as node:
        agent = Agent(
            "node", ["--node", "n", "--listen", "127.0.0.1:0", *node.arguments], tmp_path / "ready"
        )
        try:
            assert eventually(lambda: agent.get("/-/ready")[0] == 200)
            assert eventually(lambda: agent.value("tailwatch_gpu_sm_active_ratio") is not None)
            samples = agent.samples()
        finally:
            agent.kill()
    shown = {name for name, _ in samples}
    for area in (
        "efa_rx_bytes",
        "gpu_info",
        "nvlink_bytes",
        "kernel_incidents",
        "efa_pod_info",
        "rank_last_step",
    ):
        assert any(name.startswith(f"tailwatch_{area}") for name in shown), area
    assert 2000 < len(samples) <= 3500
