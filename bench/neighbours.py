"""Whether ranks notice their agent, and whether the agent misses anything of theirs.

    python bench/neighbours.py [--seconds 10] [--json]

Eight ranks, each a process of its own, write 100 records a second for `--seconds`, with a little
work before each, at the kernel's own queue length for the doorbell. Four rounds: the node agent
runs, is dead, is stopped (SIGSTOP), is killed and started again in the middle. For each round: the
records that are missing in the step log once the agent is back (must be 0), and the time of the
work with its record, as median and p99 over all ranks.

Ends with 1 when a record is lost. The times are to be compared with each other, on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tailwatch.agents.node.doorbell import queue_length
from tailwatch.records import StepRecord, encode
from tailwatch.ring import MarkCode, RingWriter
from tailwatch.steplog import read_steplog

RANKS = 8
RECORDS_PER_SECOND = 100
WORK_SECONDS = 0.001
DEADLINE_SECONDS = 60.0


class NodeAgent:
    """A node agent that can die, stand still and come back."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        ready = self._root / "ready"
        ready.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tailwatch.agents.node.main", "--node", "bench"),
                *("--rings", str(self._root / "rings"), "--log", str(self._root / "log")),
                *("--doorbell", str(self._root / "bell"), "--ready-file", str(ready)),
                *("--listen", "127.0.0.1:0", "--collector.disable-defaults"),
                "--collector.steps",
            ],
            stderr=subprocess.DEVNULL,
        )
        while not ready.exists():
            if self._process.poll() is not None:
                raise SystemExit("the node agent did not start")
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; wait for its end when it is to end."""
        assert self._process is not None
        self._process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait()


def rank_main(root: Path, rank: int, attempt: int, seconds: float) -> None:
    """Be one rank: write records at a fixed rate, and print the seconds of each step as JSON."""
    ring = RingWriter(
        root / "rings", run="bench", attempt=attempt, rank=rank, world_size=RANKS, node="bench",
        doorbell=root / "bell",
    )  # fmt: skip
    taken = []
    begin = time.monotonic()
    for step in range(int(seconds * RECORDS_PER_SECOND)):
        time.sleep(max(begin + step / RECORDS_PER_SECOND - time.monotonic(), 0))
        started = time.perf_counter()
        until = started + WORK_SECONDS
        ring.begin_step(step)
        ring.mark(MarkCode.STEP)
        while time.perf_counter() < until:
            pass
        record = StepRecord(
            run="bench", attempt=attempt, step=step, iteration=step, rank=rank, node="bench",
            world_size=RANKS, configuration="bench", stage="grpo", start_ns=time.time_ns(),
            start_mono_ns=time.monotonic_ns(), duration_ns=1_000_000,
            phases_ns={"forward_backward": 1_000_000}, waits_ns={"ep": 1000},
        )  # fmt: skip
        ring.append(encode(record))
        taken.append(time.perf_counter() - started)
    print(json.dumps(taken))


def round_of(
    root: Path, attempt: int, seconds: float, meanwhile: Callable[[], None]
) -> list[float]:
    """Run all ranks, do something in the meantime, and return the seconds of their steps."""
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", f"{root}:{rank}:{attempt}:{seconds}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    time.sleep(seconds / 2)
    meanwhile()
    return [t for rank in ranks for t in json.loads(rank.communicate()[0])]


def logged(root: Path, attempt: int, expected: int) -> int:
    """Wait until the log holds the round's records, and return how many different ones it holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        records = read_steplog(root / "log" / "bench.steplog")
        found = [
            (r.rank, r.step) for r in records if isinstance(r, StepRecord) and r.attempt == attempt
        ]
        if len(found) != len(set(found)):
            raise SystemExit("a record is in the step log twice")
        if len(found) >= expected or time.monotonic() > deadline:
            return len(found)
        time.sleep(0.2)


def measure(root: Path, seconds: float) -> dict[str, Any]:
    """Run the four rounds and return their figures."""
    agent = NodeAgent(root)
    agent.start()
    expected = RANKS * int(seconds * RECORDS_PER_SECOND)

    def restart() -> None:
        agent.signal(signal.SIGKILL)
        agent.start()

    # name, before the round, in its middle, after it
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    rounds: list[tuple[str, Callable[[], None], Callable[[], None], Callable[[], None]]] = [
        ("running", nothing, nothing, nothing),
        ("dead", lambda: agent.signal(signal.SIGKILL), nothing, agent.start),
        (
            "stopped",
            lambda: agent.signal(signal.SIGSTOP),
            nothing,
            lambda: agent.signal(signal.SIGCONT),
        ),
        ("restarted", nothing, restart, nothing),
    ]
    found: dict[str, Any] = {
        "ranks": RANKS,
        "records_per_second": RECORDS_PER_SECOND,
        "seconds": seconds,
        "doorbell_queue_length": queue_length(),
        "rounds": {},
    }
    for attempt, (name, before, middle, after) in enumerate(rounds, 1):
        before()
        taken = np.array(round_of(root, attempt, seconds, middle)) * 1e3
        after()
        found["rounds"][name] = {
            "written": expected,
            "lost": expected - logged(root, attempt, expected),
            "step_ms": {
                "median": float(np.median(taken)),
                "p99": float(np.quantile(taken, 0.99)),
                "n": len(taken),
            },
        }
    agent.signal(signal.SIGTERM)
    found["lost"] = sum(r["lost"] for r in found["rounds"].values())
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a round")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.rank:
        root, rank, attempt, seconds = flags.rank.rsplit(":", 3)
        rank_main(Path(root), int(rank), int(attempt), float(seconds))
        return 0
    shared = Path("/dev/shm")
    base = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tailwatch-bench-", dir=base) as directory:
        root = Path(directory)
        found = measure(root, flags.seconds)
    if flags.json:
        print(json.dumps(found))
        return 1 if found["lost"] else 0
    print(
        f"{RANKS} ranks x {RECORDS_PER_SECOND} records/s for {flags.seconds:g} s, "
        f"doorbell queue {found['doorbell_queue_length']}"
    )
    print(f"{'agent':12}{'written':>9}{'lost':>6}{'median ms':>12}{'p99 ms':>9}")
    for name, row in found["rounds"].items():
        step = row["step_ms"]
        print(f"{name:12}{row['written']:9}{row['lost']:6}{step['median']:12.3f}{step['p99']:9.3f}")
    return 1 if found["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
