"""What checkpoints that are verified cost, and that no damage gets past them.

    python bench/checkpoint.py matrix [--trials 10000] [--clean 1000] [--workers 2]
    python bench/checkpoint.py cost [--gib 1] [--pairs 15] [--disk DIR] [--memory DIR] [--json]

`matrix` does seeded faults to copies of a checkpoint of three ranks and loads each; it ends with 1
when one loads silently, is named wrongly, or a clean one is refused (tests/support/corruption.py).

`cost` saves and loads on two ranks, ours and stock torch DCP (with its fsyncs) in turn, each pair
in the same minute. Ours includes commit and reading back for a save, full verification for a load;
deleting older ones is left out on both sides. A figure is the median of the paired ratios with its
95 % bootstrap interval; the upper end counts against the bar. A cold load drops the page cache
first, which needs root. `stall` is what the trainer waits for a save in the background, over a
blocking one. `memory` compares the peak resident memory of the processes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as stock_load
from torch.distributed.checkpoint.state_dict_saver import save as stock_save

from tailwatch.integrity import Policy, verify
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint import CheckpointStore

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.checkpoints import on_ranks  # noqa: E402
from support.corruption import FAULTS, clean_run, clean_trial, trial  # noqa: E402

RANKS = 2
EXPERTS = 16
SMALL = 64
State = dict[str, torch.Tensor]
Times = dict[str, list[float]]

# Name of the figure, numerator, denominator, bar for the upper end of the interval.
RATIOS: dict[str, list[tuple[str, str, str, float | None]]] = {
    "disk": [
        ("save", "save ours", "save stock", 1.15),
        ("load, cold", "cold ours", "cold stock", 1.25),
        ("load, warm", "warm ours", "warm stock", None),
        ("stall", "stall ours", "save ours", 0.10),
        ("memory", "memory ours", "memory stock", 1.10),
    ],
    "memory": [
        ("save", "save ours", "save stock", 1.00),
        ("load", "warm ours", "warm stock", 1.10),
    ],
}
VERIFY_BAR = 2.0


def matrix(arguments: argparse.Namespace) -> int:
    """Run the corruption matrix on several processes."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=arguments.memory) as folder:
        root = Path(folder)
        clean = clean_run(root / "clean").root
        names = sorted(FAULTS)
        work = [(clean, root, names[n % len(names)], n) for n in range(arguments.trials)]
        work += [(clean, root, "", n) for n in range(arguments.clean)]
        with multiprocessing.get_context("fork").Pool(arguments.workers, _one_thread) as pool:
            wrong = [text for text in pool.imap_unordered(_trial, work, chunksize=20) if text]
    for text in wrong[:20]:
        print(text)
    print(
        f"{arguments.trials} trials of {len(names)} faults and {arguments.clean} clean ones in"
        f" {time.monotonic() - started:.0f} s: {len(wrong)} wrong"
    )
    return 1 if wrong else 0


def _one_thread() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _trial(work: tuple[Path, Path, str, int]) -> str:
    clean, root, name, seed = work
    scratch = root / f"{name or 'clean'}-{seed}"
    if name:
        complaints = trial(RunDirectory(clean), scratch, name, seed)
    else:
        complaints = clean_trial(RunDirectory(clean), scratch, seed)
    shutil.rmtree(scratch)
    return f"{scratch.name}: {'; '.join(complaints)}" if complaints else ""


def cost(arguments: argparse.Namespace) -> int:
    """Measure all ratios; 1 when an upper end is above its bar."""
    ratios: list[dict[str, Any]] = []
    found: dict[str, Any] = {"gib": arguments.gib, "pairs": arguments.pairs, "ratios": ratios}
    failed = False
    for place, folder in (("disk", arguments.disk), ("memory", arguments.memory)):
        with tempfile.TemporaryDirectory(dir=folder, prefix="tailwatch-bench-") as root:
            times = on_ranks(
                RANKS, _measure, Path(root), place, arguments.gib, arguments.pairs, timeout=3600
            )[0]
        if isinstance(times, Exception):
            raise times
        for name, ours, stock, bar in RATIOS[place]:
            if not times[ours]:
                continue
            low, middle, high = interval(times[ours], times[stock])
            failed |= bar is not None and high > bar
            ratios.append(
                {"place": place, "figure": name, "ratio": middle, "low": low, "high": high,
                 "bar": bar, "ours": statistics.median(times[ours]),
                 "other": statistics.median(times[stock])}
            )  # fmt: skip
        speed = statistics.median(times["verify GiB/s"])
        failed |= speed < VERIFY_BAR
        found[f"verify GiB/s, {place}"] = speed
    if arguments.json:
        print(json.dumps(found))
        return int(failed)
    print(f"{arguments.gib} GiB on {RANKS} ranks, {arguments.pairs} pairs")
    for r in ratios:
        limit = "" if r["bar"] is None else f", bar {r['bar']}"
        print(
            f"{r['place']:6} {r['figure']:10} {r['ratio']:.3f} ({r['low']:.3f} to {r['high']:.3f})"
            f"{limit}; {r['ours']:.3g} over {r['other']:.3g}"
        )
    for place in RATIOS:
        print(
            f"{place:6} verify alone, warm, one rank: {found[f'verify GiB/s, {place}']:.1f} GiB/s"
        )
    return int(failed)


def interval(ours: list[float], stock: list[float]) -> tuple[float, float, float]:
    """Return lower end, median and upper end of the paired ratios (95 %, bootstrap)."""
    ratios = [a / b for a, b in zip(ours, stock, strict=True)]
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], statistics.median(ratios), medians[1949]


def _state(gib: float, rank: int) -> State:
    """Return this rank's experts, and small tensors that all ranks hold."""
    each = int(gib * 2**30 / 4 / EXPERTS)
    found = {f"model.layers.{n}.norm": torch.rand(256) for n in range(SMALL)}
    for expert in range(rank * EXPERTS // RANKS, (rank + 1) * EXPERTS // RANKS):
        found[f"model.layers.0.experts.{expert}.w1"] = torch.rand(each // 1024, 1024)
    return found


def _measure(rank: int, world_size: int, root: Path, place: str, gib: float, pairs: int) -> Times:
    warnings.simplefilter("ignore")
    values, target = _state(gib, rank), _state(gib, rank)
    run = RunDirectory.create(root / "run", {}) if rank == 0 else RunDirectory(root / "run")
    dist.barrier()
    store = CheckpointStore(run, emit=lambda *_: None, policy=Policy(keep_last=1000))
    times: Times = {}
    stock = root / "stock"
    step = 0

    def save_ours(wait: bool = True) -> None:
        store.save(values, step=step, iteration=0, attempt=1, extra={}, wait=wait)

    def save_stock() -> None:
        stock_save(values, storage_writer=FileSystemWriter(stock))

    def load_ours() -> None:
        store.load(target)

    def load_stock() -> None:
        stock_load(target, storage_reader=FileSystemReader(stock))

    def timed(name: str, function: Callable[[], None]) -> None:
        times.setdefault(name, []).append(_timed(function))

    for pair in range(pairs + 1):
        step = 2 * pair + 1
        if rank == 0:
            for old in (stock, *run.checkpoints.iterdir()):
                shutil.rmtree(old, ignore_errors=True)
        sides: list[tuple[str, Callable[[], None]]] = [
            ("save ours", save_ours),
            ("save stock", save_stock),
        ]
        loads: list[tuple[str, Callable[[], None]]] = [("ours", load_ours), ("stock", load_stock)]
        if pair % 2:
            sides.reverse()
            loads.reverse()
        for name, function in sides:
            _settle(rank)
            timed(name, function)
        for name, function in loads:
            if place == "disk" and _drop_cache(rank):
                timed(f"cold {name}", function)
            _forget_peak()
            timed(f"warm {name}", function)
            times.setdefault(f"memory {name}", []).append(_peak_bytes())
        step += 1
        _settle(rank)
        timed("stall ours", lambda: save_ours(wait=False))
        store.wait()
        if rank == 0:
            started = time.perf_counter()
            finding = verify(run.checkpoints / f"step-{step:08d}")
            assert finding.verdict == "valid"
            speed = finding.bytes_read / 2**30 / (time.perf_counter() - started)
            times.setdefault("verify GiB/s", []).append(speed)
        if pair == 0:
            times = {name: [] for name in times}  # warm-up: buffers are new, files too
    store.close()
    times.setdefault("cold ours", [])
    times.setdefault("cold stock", [])
    return times


def _timed(function: Callable[[], None]) -> float:
    """Return the seconds of the slowest rank."""
    dist.barrier()
    started = time.perf_counter()
    function()
    taken = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


def _settle(rank: int) -> None:
    """Let the disk finish what others left to it."""
    if rank == 0:
        os.sync()
    dist.barrier()


def _drop_cache(rank: int) -> bool:
    """Make the next read come from the disk; return whether that was possible."""
    if os.geteuid() != 0:
        return False
    if rank == 0:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("1")
    dist.barrier()
    return True


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> float:
    """Return the peak resident memory of this process since it was forgotten."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    raise LookupError("VmHWM")


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("matrix", help="seeded corruptions")
    one.add_argument("--trials", type=int, default=10_000)
    one.add_argument("--clean", type=int, default=1_000)
    one.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    one.set_defaults(run=matrix)
    two = commands.add_parser("cost", help="ratios to stock DCP")
    two.add_argument("--gib", type=float, default=1.0)
    two.add_argument("--pairs", type=int, default=15)
    two.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="a directory on a disk")
    two.add_argument("--json", action="store_true")
    two.set_defaults(run=cost)
    for command in (one, two):
        command.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a tmpfs")
    arguments = parser.parse_args()
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
