"""Checkpoints with known contents, and real gloo ranks to save and load them.

The truth about a tensor is a function of its name and the step alone, so any test can tell the
values of one step from those of another without asking the code under test.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tailwatch.integrity import BLOCK_BYTES, FileEntry, Manifest, Policy, digest, write_manifest
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint import CheckpointStore

EXPERTS = 4
State = dict[str, torch.Tensor]


class Events:
    """Collects what a store emits."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, dict[str, Any]]] = []

    def __call__(self, kind: str, step: int, detail: dict[str, Any], /) -> None:
        self.seen.append((kind, step, detail))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [detail for k, _, detail in self.seen if k == kind]


def tensor(name: str, step: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the true value of a tensor at a step."""
    seed = zlib.crc32(f"{name}@{step}".encode())
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def state(step: int, rank: int = 0, world_size: int = 1) -> State:
    """Return the true state of one of `world_size` ranks: some shared tensors, its own experts."""
    found = {
        "model.embed": tensor("model.embed", step, (8, 16)),
        "model.layers.0.router": tensor("model.layers.0.router", step, (EXPERTS, 16)),
        "optim.embed.step": torch.tensor(float(step)),
    }
    for expert in range(EXPERTS):
        if expert * world_size // EXPERTS == rank:
            name = f"model.layers.0.experts.{expert}.w1"
            found[name] = tensor(name, step, (16, 32))
    return found


def blank(like: State) -> State:
    """Return a state of the same shapes that holds none of any step's values."""
    return {name: torch.full_like(value, float("nan")) for name, value in like.items()}


def equal(a: State, b: State) -> bool:
    """Whether two states hold the same values to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def new_run(root: Path) -> RunDirectory:
    """Return a fresh run directory."""
    return RunDirectory.create(root, {})


def save_steps(
    run: RunDirectory,
    steps: list[int],
    rank: int = 0,
    world_size: int = 1,
    block_bytes: int = BLOCK_BYTES,
) -> None:
    """Save the true state of some steps; collective when there are several ranks."""
    policy = Policy(keep_last=10)
    store = CheckpointStore(run, policy=policy, emit=Events(), block_bytes=block_bytes)
    for step in steps:
        store.save(
            state(step, rank, world_size), step=step, iteration=step // 2, attempt=1, extra={}
        )
    store.close()


def write_plain(
    directory: Path, files: dict[str, bytes], *, step: int, run: str = "run", block: int = 64
) -> Manifest:
    """Write a checkpoint directory by hand, without torch, with small blocks."""
    directory.mkdir(parents=True)
    entries = {}
    for name, data in files.items():
        (directory / name).write_bytes(data)
        blocks = [data[i : i + block] for i in range(0, len(data), block)]
        entries[name] = FileEntry(
            size=len(data), block_bytes=block, digests=[digest(b) for b in blocks]
        )
    manifest = Manifest(
        run=run,
        attempt=1,
        step=step,
        iteration=0,
        world_size=2,
        save_id=f"save-{step}",
        files=entries,
        tensors={"w": [1]},
    )
    write_manifest(directory, manifest)
    return manifest


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit of a file in place; a second time undoes it."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def on_ranks(
    world_size: int, function: Callable[..., Any], *arguments: Any, timeout: float = 60.0
) -> list[Any]:
    """Run `function(rank, world_size, *arguments)` on real gloo ranks; return what each returned.

    An exception comes back as a value, so that a test can say on which ranks it must be raised;
    a rank that was killed gives None.
    """
    context = multiprocessing.get_context("fork")
    processes = []
    pipes: list[Connection] = []
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for rank in range(world_size):
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_rank,
                    args=(rank, world_size, f"{scratch}/store", theirs, function, arguments),
                )
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(mine)
            for rank, pipe in enumerate(pipes):
                if not pipe.poll(timeout):
                    raise TimeoutError(f"rank {rank} did not answer within {timeout} s")
                try:
                    results.append(pipe.recv())
                except EOFError:
                    results.append(None)
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()
    return results


def _rank(
    rank: int,
    world_size: int,
    store: str,
    pipe: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    try:
        result = function(rank, world_size, *arguments)
    except Exception as error:
        result = error
    pipe.send(result)
