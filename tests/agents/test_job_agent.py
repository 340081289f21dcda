"""The job agent as a process, pulling from real node agents."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import Agent, job_agent, node_agent
from support.procs import eventually
from support.ranks import append_steps, event, ring
from tailwatch.records import encode
from tailwatch.ring import RingWriter
from tailwatch.statistics import N_EFF_FOR_P99

STEPS = "tailwatch_job_steps_total"


class Cluster:
    """Two node agents with two ranks each, and a job agent over them."""

    def __init__(self, root: Path, stack: contextlib.ExitStack) -> None:
        self.root = root
        self.agents = {
            node: stack.enter_context(node_agent(root / node, node))
            for node in ("node-0", "node-1")
        }
        self.rings: list[RingWriter] = []
        self.start_attempt(1)
        self._stack = stack
        self.job = self.start_job()

    def start_job(self) -> Agent:
        """Start the job agent on the state it left."""
        addresses = {node: agent.address for node, agent in self.agents.items()}
        self.job = self._stack.enter_context(job_agent(self.root, addresses))
        return self.job

    def start_attempt(self, attempt: int) -> None:
        """Give every rank a new ring."""
        self.attempt = attempt
        self.rings = [
            ring(
                self.root / f"node-{rank // 2}" / "rings",
                rank,
                attempt=attempt,
                record_slots=4096,
                doorbell=self.root / f"node-{rank // 2}" / f"node-{rank // 2}.bell",
            )
            for rank in range(4)
        ]

    def steps(self, first: int, last: int, late_rank: int | None = None) -> None:
        """Append the records of whole job steps."""
        for rank, writer in enumerate(self.rings):
            waits = {"ep": 1_000_000 if rank == late_rank else 51_000_000}
            append_steps(writer, rank, first, last, attempt=self.attempt, waits_ns=waits)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Node agents and a job agent that are ready."""
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def test_from_rings_to_metrics(cluster: Cluster) -> None:
    """Steps of four ranks on two nodes become job steps, a baseline, lateness and a restart."""
    assert cluster.job.value("tailwatch_job_restarts_total") == 0
    cluster.steps(1, N_EFF_FOR_P99 + 31, late_rank=3)
    assert eventually(lambda: cluster.job.value(STEPS) == N_EFF_FOR_P99 + 31)
    assert cluster.job.value("tailwatch_job_baseline_known") == 1
    assert cluster.job.value("tailwatch_job_steps_judged_total") == 31
    late = cluster.job.value("tailwatch_rank_late_seconds_total", node="node-1", rank="3")
    assert late == pytest.approx(0.05 * (N_EFF_FOR_P99 + 31))
    assert cluster.job.value("tailwatch_rank_late_seconds_total") == pytest.approx(late)
    cluster.rings[0].append(encode(event("checkpoint_refused", step=300)))
    cluster.start_attempt(2)
    cluster.steps(320, 322)
    assert eventually(lambda: cluster.job.value("tailwatch_job_restarts_total") == 1)
    assert eventually(lambda: cluster.job.value(STEPS) == N_EFF_FOR_P99 + 34)
    assert cluster.job.value("tailwatch_checkpoint_refused_total") == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_baseline_and_counters_survive_the_agent(cluster: Cluster, how: signal.Signals) -> None:
    """Killed or ended and started again, the job agent has the same baseline and counts on."""
    cluster.steps(1, 320)
    assert eventually(lambda: cluster.job.value(STEPS) == 320)
    names = ("tailwatch_job_baseline_last_step", "tailwatch_job_steps_judged_total", STEPS)
    before = [cluster.job.value(name) for name in names]
    assert cluster.job.kill(how) == (0 if how == signal.SIGTERM else -how)
    cluster.start_job()
    assert eventually(lambda: [cluster.job.value(name) for name in names] == before)
    cluster.steps(321, 330)
    assert eventually(lambda: cluster.job.value(STEPS) == 330)
    assert cluster.job.value("tailwatch_job_baseline_last_step") == before[0]


def test_node_agent_that_restarts_costs_nothing(cluster: Cluster) -> None:
    """While one node agent is away its steps wait, and afterwards none is missing."""
    cluster.steps(1, 10)
    assert eventually(lambda: cluster.job.value(STEPS) == 10)
    agent = cluster.agents["node-1"]
    agent.kill()
    cluster.steps(11, 20)
    host = agent.address
    with contextlib.ExitStack() as stack:
        again = subprocess.Popen(
            [
                *(sys.executable, "-m", "tailwatch.agents.node.main", "--node", "node-1"),
                *("--rings", str(cluster.root / "node-1" / "rings")),
                *("--log", str(cluster.root / "node-1" / "log")),
                *("--doorbell", str(cluster.root / "node-1" / "node-1.bell"), "--listen", host),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        stack.callback(again.wait)
        stack.callback(again.kill)
        assert eventually(lambda: cluster.job.value(STEPS) == 20)


def test_stopped_node_agent_does_not_hold_the_others(cluster: Cluster) -> None:
    """With one node agent stopped the job agent still answers, and ends at once when told to."""
    pid = cluster.agents["node-1"].process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        cluster.steps(1, 3)
        late = "tailwatch_rank_late_seconds_total"
        assert eventually(lambda: cluster.job.value(late, node="node-0") == 0)
        assert cluster.job.value(STEPS) == 0
        started = time.monotonic()
        assert cluster.job.kill(signal.SIGTERM) == 0
        assert time.monotonic() - started < 20
    finally:
        os.kill(pid, signal.SIGCONT)


def test_unknown_nodes_are_not_fatal(tmp_path: Path) -> None:
    """A node agent that is not there yet is waited for, with one line that says so."""
    with job_agent(tmp_path, {"node-0": "127.0.0.1:9"}) as agent:
        assert agent.value("tailwatch_job_restarts_total") == 0
        assert eventually(lambda: "node node-0: " in agent.errors.read_text())
        time.sleep(1)
        assert agent.errors.read_text().count("node node-0: ") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"--nodes": "node-0"}, "--nodes: 'node-0', expected name=host:port"),
        ({"--nodes": "a=127.0.0.1:1,a=127.0.0.1:2"}, "--nodes: 'a=127.0.0.1:2'"),
        ({"--nodes": "a=nowhere"}, "--nodes: 'nowhere', expected host:port"),
        ({"--expected-world-size": "0"}, "--expected-world-size: expected at least 1"),
        ({"--interval": "0"}, "--interval: expected 0.05 to 60"),
        ({"--interval": "nan"}, "--interval: expected 0.05 to 60"),
        ({"--run": "a/b"}, "--run: 'a/b'"),
        ({"--state": "/proc/nowhere"}, "--state: /proc/nowhere"),
    ],
)
def test_bad_usage_is_one_line(tmp_path: Path, change: dict[str, str], said: str) -> None:
    """Impossible flags end with code 2 and one line that names the flag."""
    flags = {
        "--run": "run-1",
        "--workload": "grpo",
        "--nodes": "node-0=127.0.0.1:1",
        "--expected-world-size": "4",
        "--state": str(tmp_path),
        **change,
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tailwatch.agents.job.main"),
            *(word for pair in flags.items() for word in pair),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
