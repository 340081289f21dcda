"""Agents as processes of their own, on real rings and sockets."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from support.procs import eventually

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Agent:
    """A running agent; `address` is where it serves."""

    def __init__(
        self,
        kind: str,
        arguments: list[str | Path],
        ready: Path,
        *,
        program: list[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        ready.unlink(missing_ok=True)
        self.errors = ready.with_suffix(".log")
        with self.errors.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *(program or ["-m", f"tailwatch.agents.{kind}.main"]),
                    *(str(a) for a in arguments),
                    *("--ready-file", str(ready)),
                ],
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                    **(environment or {}),
                },
            )
        there = eventually(lambda: ready.exists() or self.process.poll() is not None)
        assert there and ready.exists(), self.errors.read_text()
        self.address = ready.read_text().strip()

    def get(self, path: str, accept: str = "*/*") -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers of a path."""
        asked = urllib.request.Request(f"http://{self.address}{path}", headers={"Accept": accept})
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return answer.status, answer.read(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read(), dict(error.headers)

    def samples(self) -> Samples:
        """Return the samples of /metrics by name and labels."""
        status, body, _ = self.get("/metrics")
        assert status == 200, body
        return parse(body)

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples that have at least these labels; None without any."""
        return total(self.samples(), name, **labels)

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send a signal, wait for the end and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=20)


def parse(exposition: bytes) -> Samples:
    """Return the samples of an exposition by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition.decode())
        for sample in family.samples
    }


def total(samples: Samples, name: str, **labels: str) -> float | None:
    """Return the sum of the samples that have at least these labels; None without any."""
    wanted = set(labels.items())
    found = [v for (n, ls), v in samples.items() if n == name and wanted <= ls]
    return sum(found) if found else None


@contextlib.contextmanager
def node_agent(root: Path, node: str = "node-0") -> Iterator[Agent]:
    """Run a node agent on `root/rings` with its log in `root/log`."""
    (root / "rings").mkdir(parents=True, exist_ok=True)
    agent = Agent(
        "node",
        [
            *("--node", node, "--rings", root / "rings", "--log", root / "log"),
            *("--doorbell", root / f"{node}.bell", "--listen", "127.0.0.1:0"),
            *("--collector.disable-defaults", "--collector.steps"),
        ],
        root / f"{node}.ready",
    )
    try:
        yield agent
    finally:
        agent.kill()


@contextlib.contextmanager
def job_agent(root: Path, nodes: dict[str, str], *, world_size: int = 4) -> Iterator[Agent]:
    """Run a job agent of `run-1` on the node agents at these addresses."""
    agent = Agent(
        "job",
        [
            *("--run", "run-1", "--workload", "grpo", "--interval", "0.2"),
            *("--nodes", ",".join(f"{name}={address}" for name, address in nodes.items())),
            *("--expected-world-size", str(world_size), "--state", root / "state"),
            *("--listen", "127.0.0.1:0"),
        ],
        root / "job.ready",
    )
    try:
        yield agent
    finally:
        agent.kill()
