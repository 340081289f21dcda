"""What a restart costs, against plain torchrun with stock torch DCP.

    python bench/restart.py [--pairs 7] [--nodes 1] [--set FIELD=VALUE ...] [--json]

A rank of a job of 2 ranks a node is killed with SIGKILL; what counts is the time until the first
step after that is finished on all ranks. Both sides train the same model by the same loop on the
same machine, save after the same steps, and are killed at the same place: some steps after a
checkpoint. They take turns, each from a fresh start; with one pair first that does not count.

- ours: the launcher of `tailwatch train`, with verified checkpoints;
- plain: `python -m torch.distributed.run --standalone` (2 agents and a c10d store for 2 nodes) with
  `torch.distributed.checkpoint.save` and `load`, and torchrun's own settings. It gets
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because torch 2.13 on gloo does not restart without, and a
  `latest` file, because DCP has no notion of one.

The figure is the median of the paired ratios with its 95 % bootstrap interval; ends with 1 when its
upper end is above the bar.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailwatch.catalogue.restart import RESTART_PARTS
from tailwatch.manifest import describe
from tailwatch.records import StepRecord, decode
from tailwatch.ring import RingReader, TornRing
from tailwatch.runs import RunDirectory
from tailwatch.trainer.config import TrainerConfig, config_from

BAR = 0.5
RANKS = 2
PATIENCE_SECONDS = 120.0
STEPS_AFTER_SAVE = 3
SETTINGS = {"sft_steps": 100_000, "checkpoint_every": 20, "max_steps": 100_000}


def steps(rings: Path) -> dict[tuple[int, int], list[StepRecord]]:
    """Return the records of all ranks by (attempt, step)."""
    found: dict[tuple[int, int], list[StepRecord]] = {}
    for path in rings.rglob("*.ring"):
        try:
            reader = RingReader(path)
        except (OSError, TornRing):
            continue
        for payload in reader.read_records():
            record = decode(payload)
            if isinstance(record, StepRecord):
                found.setdefault((record.attempt, record.step), []).append(record)
        reader.close()
    return found


def wait_for_step(rings: Path, attempt: int, step: int, job: subprocess.Popen[bytes]) -> int:
    """Return when the first step >= `step` of an attempt >= `attempt` ended on all ranks (ns)."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and job.poll() is None:
        for key, records in sorted(steps(rings).items()):
            whole = len(records) == records[0].world_size
            if key[0] >= attempt and key[1] >= step and whole:
                return max(record.start_ns + record.duration_ns for record in records)
        time.sleep(0.02)
    raise SystemExit(f"no step {step} of attempt {attempt} within {PATIENCE_SECONDS:g} s")


@contextlib.contextmanager
def ours(root: Path, nodes: int, settings: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Run `tailwatch train`; give its rings."""
    command = [sys.executable, "-m", "tailwatch", "train", "--out", str(root / "run")]
    command += ["--nodes", str(nodes), "--ranks", str(RANKS)]
    for field, value in settings.items():
        command += ["--set", f"{field}={value}"]
    before = set(Path("/dev/shm").glob("tailwatch-*"))
    with running(command, root, signal.SIGINT) as job:
        while not (new := set(Path("/dev/shm").glob("tailwatch-*")) - before):
            time.sleep(0.05)
        yield new.pop(), job


@contextlib.contextmanager
def plain(root: Path, nodes: int, settings: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Run torchrun; give the rings of its ranks."""
    script = Path(__file__).with_name("plain_trainer.py")
    config: TrainerConfig = config_from(settings, "--set")
    manifest = describe(
        config=config, workload=config.workload, nodes=["node-0"], ranks_per_node=RANKS,
        backend="gloo",
    )  # fmt: skip
    RunDirectory.create(root / "run", manifest)
    rings = Path(tempfile.mkdtemp(prefix="bench-restart-", dir="/dev/shm"))
    rest = [str(script), str(root / "run"), str(rings)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "3"]
    torchrun += ["--nproc-per-node", str(RANKS)]
    with contextlib.ExitStack() as stack:
        if nodes == 1:
            command = [*torchrun, "--standalone", *rest]
            job = stack.enter_context(running(command, root, signal.SIGTERM))
        else:
            port = random.randrange(20_000, 30_000)
            torchrun += ["--nnodes", str(nodes), "--rdzv-backend", "c10d"]
            torchrun += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "bench"]
            torchrun += ["--local-addr", "127.0.0.1"]
            for _ in range(nodes):
                job = stack.enter_context(running([*torchrun, *rest], root, signal.SIGTERM))
        try:
            yield rings, job
        finally:
            for path in rings.iterdir():
                path.unlink()
            rings.rmdir()


@contextlib.contextmanager
def running(command: list[str], root: Path, end: signal.Signals) -> Iterator[Any]:
    """Run a command until the block ends."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }  # fmt: skip
    with (root / "log").open("ab") as log:
        job = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        yield job
    finally:
        job.send_signal(end)
        try:
            job.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def measure(side: Any, nodes: int, settings: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """Return the seconds from a kill to the next whole step, and their parts where known."""
    with tempfile.TemporaryDirectory(prefix="bench-restart-", dir="/var/tmp") as folder:
        root = Path(folder)
        with side(root, nodes, settings) as (rings, job):
            place = settings["checkpoint_every"] + STEPS_AFTER_SAVE
            wait_for_step(rings, 1, place, job)
            victim = RunDirectory(root / "run").read_attempts()[-1].ranks[-1].pid
            killed = time.time_ns()
            os.kill(victim, signal.SIGKILL)
            seconds = (wait_for_step(rings, 2, 1, job) - killed) / 1e9
            time.sleep(0.3)  # the event comes right behind the step
        resumed = [e for e in RunDirectory(root / "run").read_events() if e.kind == "resumed"]
        return seconds, resumed[0].detail["parts"] if resumed else {}


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return lower end, median and upper end (95 %, bootstrap)."""
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], statistics.median(ratios), medians[1949]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    settings: dict[str, Any] = dict(SETTINGS)
    settings |= {f: json.loads(v) for f, _, v in (one.partition("=") for one in arguments.set)}
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    parts: list[dict[str, float]] = []
    for pair in range(arguments.pairs + 1):
        sides = [("ours", ours), ("plain", plain)]
        for name, side in sides if pair % 2 else sides[::-1]:
            seconds, of_it = measure(side, arguments.nodes, settings)
            if pair:
                times[name].append(seconds)
                parts += [of_it] if of_it else []
    ratios = [a / b for a, b in zip(times["ours"], times["plain"], strict=True)]
    low, middle, high = interval(ratios)
    found: dict[str, Any] = {
        "nodes": arguments.nodes, "pairs": arguments.pairs, "settings": settings,
        "ratio": middle, "low": low, "high": high, "bar": BAR, "times": times,
        "parts": {p: statistics.median(one[p] for one in parts) for p in RESTART_PARTS},
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(found))
        return int(high > BAR)
    print(f"{arguments.nodes} node(s) of {RANKS} ranks, {arguments.pairs} pairs")
    for name, all_of in times.items():
        print(
            f"{name:6} {statistics.median(all_of):.2f} s ({min(all_of):.2f} to {max(all_of):.2f})"
        )
    print(f"ratio  {middle:.3f} ({low:.3f} to {high:.3f}), bar {BAR}")
    for part, seconds in found["parts"].items():
        print(f"  {part:10} {seconds:.3f} s")
    return int(high > BAR)


if __name__ == "__main__":
    sys.exit(main())
