"""What the node agent costs, and how long it takes to answer.

    python bench/node_agent.py [cpu] [cycle] [scrape] [sick] [memory] [--json]

measures what is named, or everything. Every figure comes from the real agent on trees that look
like /sys:

- cpu: CPU time of the whole process for one read of a node with 32 InfiniBand devices and one
  scrape, both once a second, over that of node_exporter 1.10.2 with nothing but its InfiniBand
  collector, on one core and with a quiet garbage collector, on the same tree in the same seconds,
  each scraped over a connection that stays open, as Prometheus does. Both read the same counters
  and states; ours shows the health of each device on top. Bar: 0.5, for the upper end of the 95 %
  interval from a bootstrap over `--pairs` pairs of `--seconds` seconds.
- cycle: one read of the 32 x 34 counters of a node with 32 EFA devices, in milliseconds, from the
  wish to the last one read. Bar: 20, for the p99.
- scrape: p99 of /metrics on that node over `--scrapes` scrapes at 10 a second, each on a connection
  of its own, in milliseconds. Bar: 10.
- sick: the same over 320 scrapes while the read of every device hangs, and over 320 while those of
  its 8 GPUs hang in NVML, too. Bar: 50.
- memory: resident memory after `--cycles` cycles of `bench/soak.py` on that node with its GPUs, its
  pods and its ranks, in MiB. Bar: 80, and a growth over the second half whose 95 % interval (from
  its 50 steps) holds 0.

Needs node_exporter (`python tools/get.py node_exporter`) and a C compiler. Bounds of a p99 are
one-sided at 95 %. Ends with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scraped import node_agent, node_exporter, samples_in, scrape, wait_for

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.p5 import p5_node  # noqa: E402
from support.sick import SickAgent, sick_agent  # noqa: E402
from support.sysfs import efa_node, infiniband_node  # noqa: E402
from tailwatch.agents.node.collectors import COLLECTORS, NodeConfig  # noqa: E402
from tailwatch.agents.node.watch import Watch  # noqa: E402
from tailwatch.statistics import quantile_bounds  # noqa: E402

SICK_SCRAPES = 320
CYCLES = 300
RESAMPLES = 10_000


class Figure(NamedTuple):
    """One figure; `judged` is what the bar is for, None where there is no bar."""

    name: str
    value: float
    note: str = ""
    bar: float | None = None
    judged: float = 0.0

    @property
    def missed(self) -> bool:
        """Whether there is a bar and it is missed."""
        return self.bar is not None and not self.judged <= self.bar


def measure_cpu(folder: Path, flags: argparse.Namespace) -> Iterator[Figure]:
    """Compare CPU time, one read and one scrape of each a second."""
    tree = infiniband_node(folder / "ib", 32)
    for device in (tree.root / "class/infiniband").iterdir():
        # node_exporter does not read these.
        shutil.rmtree(device / "ports/1/hw_counters")
    used = np.zeros((flags.pairs, 2))
    with node_agent(tree.root, "infiniband") as ours, node_exporter(tree.root) as theirs:
        both = (ours, theirs)
        for pair in range(-1, flags.pairs):
            before = [one.cpu_seconds() for one in both]
            for second in range(flags.seconds):
                began = time.monotonic()
                for one in both if second % 2 else both[::-1]:
                    one.again()
                time.sleep(max(1.0 - (time.monotonic() - began), 0.0))
            # The first round warms up.
            if pair >= 0:
                used[pair] = [one.cpu_seconds() - b for one, b in zip(both, before, strict=True)]
        series = [samples_in(one.again()) for one in both]
    rng = np.random.default_rng(1)
    drawn = used[rng.integers(0, flags.pairs, (RESAMPLES, flags.pairs))].sum(axis=1)
    lower, upper = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    mean = used.mean(axis=0) / flags.seconds * 1e3
    note = f"95 % interval {lower:.3f} to {upper:.3f}, {flags.pairs} pairs"
    yield Figure("cpu ratio", float(mean[0] / mean[1]), note, 0.5, float(upper))
    yield Figure("cpu of the agent, ms", float(mean[0]), f"{series[0]} series")
    yield Figure("cpu of node_exporter, ms", float(mean[1]), f"{series[1]} series")


def measure_cycle(folder: Path, flags: argparse.Namespace) -> Iterator[Figure]:
    """Time one read of every part of the EFA source, as the agent does it."""
    del flags
    config = NodeConfig(node="bench", sysfs=efa_node(folder / "efa", "p5.48xlarge").root)
    watch = Watch([COLLECTORS["efa"](config)], config)
    watch.start()
    wait_for(watch.settled)
    slots = [slot for source in watch.sources for slot in source.slots()]
    taken = []
    for _ in range(CYCLES):
        before = [slot.finished for slot in slots]
        began = time.perf_counter()
        watch.nudge()
        while any(s.finished == b for s, b in zip(slots, before, strict=True)):
            time.sleep(0.0005)
        taken.append((time.perf_counter() - began) * 1e3)
        # Between two reads of the agent's own, and long enough for the caches to cool.
        time.sleep(0.15)
    watch.close()
    yield Figure("read of all counters, median ms", float(np.median(taken)))
    yield tail("read of all counters, p99 ms", taken, 20.0)


def tail(name: str, taken: list[float], bar: float) -> Figure:
    """Return the p99 of times as a figure."""
    found = quantile_bounds(taken)
    assert found.estimate is not None
    bounds = " to ".join("none" if b is None else f"{b:.2f}" for b in (found.lower, found.upper))
    return Figure(name, found.estimate, f"bounds {bounds}, n = {found.n}", bar, found.estimate)


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


def measure_scrapes(folder: Path, flags: argparse.Namespace) -> Iterator[Figure]:
    """Time scrapes of a node with 32 EFA devices that is well."""
    with node_agent(efa_node(folder / "well", "p5.48xlarge").root, "efa") as agent:
        taken = scrape_times(agent.address, flags.scrapes)
    yield Figure("scrape, median ms", float(np.median(taken)))
    yield tail("scrape, p99 ms", taken, 10.0)


def measure_sick(folder: Path, flags: argparse.Namespace) -> Iterator[Figure]:
    """Time scrapes of that node while no device answers, and while NVML does not, either."""
    del flags
    sources = ("efa", "gpu", "nvlink")

    def hang(agent: SickAgent, source: str) -> None:
        wait_for(lambda: agent.value("tailwatch_source_up", source=source) in (0.0, 1.0))

    with (
        p5_node(folder / "sick") as node,
        sick_agent(folder / "sick/agent", node.tree.root, *sources, more=node.arguments) as agent,
    ):
        agent.sicken("/infiniband/ HANG")
        wait_for(lambda: agent.reads() >= 64)
        hang(agent, "efa")
        taken = scrape_times(agent.address, SICK_SCRAPES)
        yield tail("scrape while devices hang, p99 ms", taken, 50.0)
        node.nvml.tell("hold * * 600")
        hang(agent, "gpu")
        taken = scrape_times(agent.address, SICK_SCRAPES)
        yield tail("scrape while NVML hangs, too, p99 ms", taken, 50.0)
        node.nvml.tell()


def measure_memory(folder: Path, flags: argparse.Namespace) -> Iterator[Figure]:
    """Return resident memory at the end, and how much of it came in the second half."""
    with p5_node(folder / "soak") as node:
        done = subprocess.run(
            [sys.executable, ROOT / "bench/soak.py", str(flags.cycles), *node.arguments],
            capture_output=True,
            check=True,
        )
    memory = [mib for _, mib in json.loads(done.stdout)]
    steps = np.diff(memory[len(memory) // 2 :])
    growth = float(steps.sum())
    half = 2.0 * float(steps.std(ddof=1)) * len(steps) ** 0.5
    yield Figure("memory, MiB", memory[-1], f"after {flags.cycles} cycles", 80.0, memory[-1])
    note = f"95 % interval {growth - half:.3f} to {growth + half:.3f}"
    yield Figure("growth over the second half, MiB", growth, note, 0.0, growth - half)


BENCHES = {
    "cpu": measure_cpu,
    "cycle": measure_cycle,
    "scrape": measure_scrapes,
    "sick": measure_sick,
    "memory": measure_memory,
}


def main() -> int:
    """Measure what is asked for and say which bars were missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benches", nargs="*", choices=[*BENCHES, []], metavar="bench")
    parser.add_argument("--pairs", type=int, default=14, help="of cpu")
    parser.add_argument("--seconds", type=int, default=8, help="of each pair")
    parser.add_argument("--scrapes", type=int, default=1000)
    parser.add_argument("--cycles", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    flags = parser.parse_args()
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        for bench in flags.benches or BENCHES:
            for figure in BENCHES[bench](Path(name), flags):
                found.append(figure)
                if not flags.json:
                    bar = "" if figure.bar is None else f"   (bar {figure.bar:g})"
                    print(f"{figure.name:38} {figure.value:9.3f}   {figure.note}{bar}", flush=True)
    missed = [figure.name for figure in found if figure.missed]
    if flags.json:
        print(json.dumps({"figures": [figure._asdict() for figure in found], "missed": missed}))
    else:
        print("missed: " + ", ".join(missed) if missed else "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
