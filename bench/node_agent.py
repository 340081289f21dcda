"""What the node agent costs, and how long it takes to answer.

    python bench/node_agent.py [--seconds 60] [--scrapes 1000] [--cycles 100000] [--json]

Every figure comes from the real agent, as a process of its own, on trees that look like /sys:

- cpu: CPU time of the whole process for one read of a node with 32 InfiniBand devices and one
  scrape, both once a second for `--seconds`, over that of node_exporter 1.10.2 with nothing but its
  InfiniBand collector, on the same tree in the same seconds. Both read the same files; ours has the
  health of each device on top. Bar: at most 0.5.
- cycle: one read of all counters of a node with 32 EFA devices, in milliseconds. Bar: 20.
- scrape: p99 of /metrics on that node over `--scrapes` scrapes at 10 a second, in milliseconds.
  Bar: 10.
- sick: the same over 300 scrapes while every device hangs. Bar: 50.
- memory: resident memory after `--cycles` reads and renderings one after the other, with gRPC
  loaded, in MiB, and whether it grows: MiB per 100,000 cycles over the second half with its 95 %
  interval. Bar: 80, and an interval that holds 0.
- series: samples of that node. Bar: 3,500.

Needs node_exporter (`python tools/get.py node_exporter`) and a C compiler. Ends with 1 when a bar
is missed.
"""

from __future__ import annotations

import argparse
import http.client
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.sick import sick_agent  # noqa: E402
from support.sysfs import Sysfs, efa_node, infiniband_node  # noqa: E402
from tailwatch.agents.node.collectors import COLLECTORS, NodeConfig  # noqa: E402
from tailwatch.agents.node.watch import Watch  # noqa: E402
from tailwatch.exposition import Snapshot  # noqa: E402
from tailwatch.tools import find_tool  # noqa: E402

BARS = {
    "cpu_ratio": 0.5, "cycle_ms": 20.0, "scrape_p99_ms": 10.0, "sick_p99_ms": 50.0,
    "memory_mib": 80.0, "series": 3500.0,
}  # fmt: skip
SICK_SCRAPES = 300


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
        wait_for(lambda: self._answers())

    def _answers(self) -> bool:
        try:
            return scrape(self.address)[0] == 200
        except OSError:
            return False

    def cpu_seconds(self) -> float:
        """Return user and system time so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """Stop it."""
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
    """Return status and body of /metrics, as Prometheus asks for it."""
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/metrics", headers={"Accept": "text/plain;version=0.0.4"})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def free_address() -> str:
    """Return an address nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def node_agent(sysfs: Path, *collectors: str) -> Iterator[Scraped]:
    """Run the agent with these sources on a tree."""
    address = free_address()
    made = Scraped(
        [
            *(sys.executable, "-m", "tailwatch.agents.node.main", "--node", "bench"),
            *("--web.listen-address", address, "--path.sysfs", sysfs),
            "--collector.disable-defaults",
            *(f"--collector.{name}" for name in collectors),
        ],
        address,
    )
    try:
        yield made
    finally:
        made.end()


@contextmanager
def node_exporter(sysfs: Path) -> Iterator[Scraped]:
    """Run node_exporter with its InfiniBand collector alone, on one core."""
    address = free_address()
    made = Scraped(
        [
            *(find_tool("node_exporter", pinned=True), f"--web.listen-address={address}"),
            *("--collector.disable-defaults", "--collector.infiniband"),
            *("--web.disable-exporter-metrics", f"--path.sysfs={sysfs}"),
        ],
        address,
        GOMAXPROCS="1",
    )
    try:
        yield made
    finally:
        made.end()


def samples_in(body: bytes) -> int:
    """Return how many samples an exposition has."""
    return sum(1 for line in body.splitlines() if line and not line.startswith(b"#"))


def measure_cpu(folder: Path, seconds: float) -> dict[str, Any]:
    """Compare CPU time a second, one read and one scrape in each."""
    tree = infiniband_node(folder / "ib", 32)
    for device in (tree.root / "class/infiniband").iterdir():
        # node_exporter does not read these.
        shutil.rmtree(device / "ports/1/hw_counters")
    with node_agent(tree.root, "infiniband") as ours, node_exporter(tree.root) as theirs:
        series = {}
        for name, one in (("ours", ours), ("theirs", theirs)):
            series[name] = samples_in(scrape(one.address)[1])
        before = ours.cpu_seconds(), theirs.cpu_seconds()
        count = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            scrape(ours.address)
            scrape(theirs.address)
            count += 1
            time.sleep(max(1.0 - (time.monotonic() - began), 0.0))
        used = ours.cpu_seconds() - before[0], theirs.cpu_seconds() - before[1]
    return {
        "cpu_ratio": used[0] / used[1],
        "cpu_ms_ours": used[0] / count * 1e3,
        "cpu_ms_node_exporter": used[1] / count * 1e3,
        "series_ours": series["ours"],
        "series_node_exporter": series["theirs"],
    }


def measure_cycle(sysfs: Path, times: int = 50) -> dict[str, Any]:
    """Time one read of every part of the EFA source, as the agent does it."""
    config = NodeConfig(node="bench", sysfs=sysfs)
    watch = Watch([COLLECTORS["efa"](config)], config)
    watch.start()
    wait_for(watch.settled)
    taken = []
    for _ in range(times):
        slots = [slot for source in watch.sources for slot in source.slots()]
        before = [slot.finished for slot in slots]
        began = time.perf_counter()
        watch.nudge()
        while any(s.finished == b for s, b in zip(slots, before, strict=True)):
            time.sleep(0.0002)
        taken.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.05)
    watch.close()
    return {"cycle_ms": quantile(taken, 0.5), "cycle_p99_ms": quantile(taken, 0.99)}


def scrape_times(address: str, count: int) -> list[float]:
    """Return how long scrapes at 10 a second took, in milliseconds."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        status, _ = scrape(address)
        spent = time.perf_counter() - began
        assert status == 200
        taken.append(spent * 1e3)
        time.sleep(max(0.1 - spent, 0.0))
    return taken


def measure_scrapes(sysfs: Path, count: int) -> dict[str, Any]:
    """Time scrapes of a node with 32 EFA devices that is well."""
    with node_agent(sysfs, "efa") as agent:
        taken = scrape_times(agent.address, count)
        series = samples_in(scrape(agent.address)[1])
    return {
        "scrape_p50_ms": quantile(taken, 0.5),
        "scrape_p99_ms": quantile(taken, 0.99),
        "series": series,
    }


def measure_sick(folder: Path, sysfs: Path) -> dict[str, Any]:
    """Time scrapes of that node while no device answers."""
    with sick_agent(folder / "sick", sysfs, "efa") as agent:
        agent.sicken("/infiniband/ HANG")
        wait_for(lambda: agent.reads() >= 64)
        taken = scrape_times(agent.address, SICK_SCRAPES)
    return {"sick_p99_ms": quantile(taken, 0.99)}


def soak(sysfs: Path, cycles: int) -> None:
    """Read and render without a pause, and print resident memory a hundred times, as JSON."""
    importlib.import_module("grpc")

    config = NodeConfig(node="bench", sysfs=sysfs)
    collectors = [COLLECTORS[name](config) for name in ("efa", "infiniband")]
    memory = []
    for cycle in range(cycles):
        snapshot = Snapshot()
        for collector in collectors:
            for part in collector.discover():
                part.read()
                part.add_to(snapshot)
            collector.add_to(snapshot)
        snapshot.render()
        if cycle % max(cycles // 100, 1) == 0:
            status = Path("/proc/self/statm").read_text().split()
            memory.append((cycle, int(status[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20))
    print(json.dumps(memory))


def measure_memory(sysfs: Path, cycles: int) -> dict[str, Any]:
    """Return resident memory at the end and its slope with a 95 % interval."""
    done = subprocess.run(
        [sys.executable, __file__, "--soak", str(sysfs), "--cycles", str(cycles)],
        capture_output=True,
        check=True,
    )
    points = json.loads(done.stdout)
    slope, half = slope_of(points[len(points) // 2 :])
    return {
        "memory_mib": points[-1][1],
        "slope_mib_per_100k": slope * 1e5,
        "slope_low": (slope - half) * 1e5,
        "slope_high": (slope + half) * 1e5,
    }


def slope_of(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of a straight line through points and half its 95 % interval."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points) / (n - 2)
    # 2.0: the t of some 48 degrees of freedom.
    return slope, 2.0 * (rest / spread) ** 0.5


def quantile(values: list[float], q: float) -> float:
    """Return an order statistic."""
    return sorted(values)[min(int(q * len(values)), len(values) - 1)]


def main() -> int:
    """Measure everything and say which bars were missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--scrapes", type=int, default=1000)
    parser.add_argument("--cycles", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--soak", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.soak is not None:
        soak(flags.soak, flags.cycles)
        return 0
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        efa: Sysfs = efa_node(folder / "efa", "p5.48xlarge")
        found |= measure_cpu(folder, flags.seconds)
        found |= measure_cycle(efa.root)
        found |= measure_scrapes(efa.root, flags.scrapes)
        found |= measure_sick(folder, efa.root)
        found |= measure_memory(efa.root, flags.cycles)
    missed = [key for key, bar in BARS.items() if found[key] > bar]
    if not found["slope_low"] <= 0 <= found["slope_high"] and found["slope_low"] > 0:
        missed.append("slope_mib_per_100k")
    if flags.json:
        print(json.dumps({**found, "missed": missed}))
    else:
        for key, figure in found.items():
            bar = f"   (bar {BARS[key]:g})" if key in BARS else ""
            print(f"{key:24} {figure:10.3f}{bar}")
        print("missed: " + ", ".join(missed) if missed else "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
