"""Processes that serve /metrics, for `bench/node_agent.py`: the node agent and node_exporter.

Contract: a context manager starts one on a free address, hands it over once it answers, and ends
it. CPU time is that of the whole process.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tailwatch.tools import find_tool

# Of the settings tried (1 and 2 cores, 100, 400 and no limit of growth) the cheapest.
BEST_SETTING = {"GOMAXPROCS": "1", "GOGC": "400"}
ACCEPT = {"Accept": "text/plain;version=0.0.4"}


class Scraped:
    """A process that serves /metrics, and how much CPU time it has used."""

    def __init__(self, command: list[str | Path], address: str, **environment: str) -> None:
        self.address = address
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
        wait_for(self._answers)
        self._connection = http.client.HTTPConnection(address, timeout=30)

    def _answers(self) -> bool:
        try:
            return scrape(self.address)[0] == 200
        except OSError:
            return False

    def again(self) -> bytes:
        """Scrape over a connection that stays open."""
        self._connection.request("GET", "/metrics", headers=ACCEPT)
        return self._connection.getresponse().read()

    def cpu_seconds(self) -> float:
        """Return user and system time of all its threads so far, to the nanosecond."""
        # The kernel's number for the CPU clock of another process: see clock_getcpuclockid(3).
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def end(self) -> None:
        """Stop it."""
        self._connection.close()
        self.process.terminate()
        self.process.wait()


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit("what was to be measured did not start")
        time.sleep(0.05)


def scrape(address: str) -> tuple[int, bytes]:
    """Return status and body of /metrics over a new connection."""
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/metrics", headers=ACCEPT)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def free_address() -> str:
    """Return an address nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def running(command: list[str | Path], flag: str, **environment: str) -> Iterator[Scraped]:
    """Run a command that serves where `flag` says."""
    address = free_address()
    made = Scraped([*command, f"{flag}={address}"], address, **environment)
    try:
        yield made
    finally:
        made.end()


@contextmanager
def node_agent(sysfs: Path, collector: str) -> Iterator[Scraped]:
    """Run the agent with one source on a tree."""
    command: list[str | Path] = [
        *(sys.executable, "-m", "tailwatch.agents.node.main", "--node", "bench"),
        *("--path.sysfs", sysfs, "--collector.disable-defaults", f"--collector.{collector}"),
    ]
    with running(command, "--web.listen-address") as agent:
        yield agent


@contextmanager
def node_exporter(sysfs: Path) -> Iterator[Scraped]:
    """Run node_exporter with its InfiniBand collector alone."""
    command: list[str | Path] = [
        *(find_tool("node_exporter", pinned=True), f"--path.sysfs={sysfs}"),
        *("--collector.disable-defaults", "--collector.infiniband"),
        "--web.disable-exporter-metrics",
    ]
    with running(command, "--web.listen-address", **BEST_SETTING) as exporter:
        yield exporter


def samples_in(body: bytes) -> int:
    """Return how many samples an exposition has."""
    return sum(1 for line in body.splitlines() if line and not line.startswith(b"#"))
