"""Memory: what thousands of cycles leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.checkout import ROOT
from support.sysfs import efa_node


@pytest.mark.timeout(600)
def test_cycles_leave_nothing_behind(tmp_path: Path) -> None:
    """After 5,000 cycles on a node with EFA, with gRPC loaded, memory is small and steady."""
    efa_node(tmp_path / "sys", "p4d.24xlarge")
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "bench/node_agent.py"),
            *("--soak", tmp_path / "sys", "--cycles", "5000"),
        ],
        capture_output=True,
        check=True,
        timeout=500,
    )
    points = json.loads(done.stdout)
    assert points[-1][1] <= 80
    # Pages come in lumps; a leak of one label text a cycle would be several MiB.
    assert points[-1][1] - points[len(points) // 5][1] < 1.0
