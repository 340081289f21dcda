"""The corruption matrix: seeded faults in a real checkpoint, judged by the values that are loaded.

The oracle is independent of every verdict: whatever the store says, the tensors must be exactly
those of the step it claims to have restored. And the verdict must name the file that was damaged,
in plain words, with the first block whose bytes are not what they were.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from support.checkpoints import (
    EXPERTS,
    Events,
    blank,
    equal,
    new_run,
    on_ranks,
    save_steps,
    state,
)
from tailwatch.integrity import MANIFEST_NAME, read_manifest, write_manifest
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint import CheckpointStore, SaveError

OLD, NEW = 20, 40
RANKS = 3
BLOCK = 4096
SHARDS = [f"__{rank}_0.distcp" for rank in range(RANKS)]


class Expected(NamedTuple):
    """The file that must be named and the words that may be used; what must be loaded then."""

    file: str
    words: set[str]
    loads: int = OLD


class Case(NamedTuple):
    """What a fault works on."""

    run: RunDirectory
    new: Path
    old: Path
    dice: random.Random


Fault = Callable[[Case], Expected]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    """Add a fault to the matrix."""
    FAULTS[function.__name__] = function
    return function


def _save(rank: int, world_size: int, root: Path) -> None:
    save_steps(RunDirectory(root), [OLD, NEW], rank, world_size, block_bytes=BLOCK)


def clean_run(root: Path) -> RunDirectory:
    """Return a run with two steps, saved by three ranks in blocks of 4 KiB."""
    run = new_run(root / "run-a")
    assert on_ranks(RANKS, _save, run.root) == [None] * RANKS
    return run


def some_file(case: Case) -> Path:
    """Return any file but the manifest."""
    return case.new / case.dice.choice(sorted(read_manifest(case.new).files))


def _shard(case: Case) -> Path:
    return case.new / case.dice.choice(SHARDS)


@fault
def flip(case: Case) -> Expected:
    """Flip one bit anywhere in any file."""
    path = some_file(case)
    data = bytearray(path.read_bytes())
    data[case.dice.randrange(len(data))] ^= 1 << case.dice.randrange(8)
    path.write_bytes(data)
    return Expected(path.name, {"changed"})


@fault
def flip_manifest(case: Case) -> Expected:
    """Flip one bit of the manifest."""
    path = case.new / MANIFEST_NAME
    data = bytearray(path.read_bytes())
    data[case.dice.randrange(len(data))] ^= 1 << case.dice.randrange(8)
    path.write_bytes(data)
    return Expected(MANIFEST_NAME, {"changed", "truncated"})


@fault
def truncate(case: Case) -> Expected:
    """Cut a file short: to nothing, by one byte, at a page, anywhere."""
    path = some_file(case)
    size = path.stat().st_size
    cuts = [0, size - 1, (size - 1) // BLOCK * BLOCK, case.dice.randrange(size)]
    with path.open("r+b") as file:
        file.truncate(case.dice.choice(cuts))
    return Expected(path.name, {"truncated", "empty"})


@fault
def longer(case: Case) -> Expected:
    """Append to a file."""
    path = some_file(case)
    with path.open("ab") as file:
        file.write(case.dice.randbytes(case.dice.randrange(1, 2 * BLOCK)))
    return Expected(path.name, {"longer"})


@fault
def zero_block(case: Case) -> Expected:
    """Fill one whole block with zeros."""
    path = _shard(case)
    data = bytearray(path.read_bytes())
    block = case.dice.randrange(len(data) // BLOCK)
    data[block * BLOCK : (block + 1) * BLOCK] = bytes(BLOCK)
    path.write_bytes(data)
    return Expected(path.name, {"zeros"})


@fault
def zero_sector(case: Case) -> Expected:
    """Fill 512 bytes that were not zero with zeros."""
    path = _shard(case)
    data = bytearray(path.read_bytes())
    sectors = [at for at in range(0, len(data), 512) if any(data[at : at + 512])]
    at = case.dice.choice(sectors)
    data[at : at + 512] = bytes(len(data[at : at + 512]))
    path.write_bytes(data)
    return Expected(path.name, {"changed", "zeros"})


@fault
def zero_file(case: Case) -> Expected:
    """Keep the length of a file and nothing else."""
    path = some_file(case)
    path.write_bytes(bytes(path.stat().st_size))
    return Expected(path.name, {"zeros"})


@fault
def torn(case: Case) -> Expected:
    """Leave the tail of a file as it was at the step before."""
    path = _shard(case)
    data, before = path.read_bytes(), (case.old / path.name).read_bytes()
    cut = case.dice.randrange(100, len(data) - 2000)
    path.write_bytes(data[:cut] + before[cut:])
    return Expected(path.name, {"changed"})


@fault
def swapped_ranks(case: Case) -> Expected:
    """Exchange the files of two ranks."""
    a, b = sorted(case.dice.sample(SHARDS, 2))
    first, second = (case.new / a).read_bytes(), (case.new / b).read_bytes()
    (case.new / a).write_bytes(second)
    (case.new / b).write_bytes(first)
    return Expected(a, {"swapped"})


@fault
def older_shard(case: Case) -> Expected:
    """Take one rank's file from the step before."""
    path = _shard(case)
    shutil.copy(case.old / path.name, path)
    return Expected(path.name, {"changed"})


@fault
def mixed_step(case: Case) -> Expected:
    """Overwrite by the step before, and stop between two files."""
    files = case.dice.sample(SHARDS, case.dice.randrange(1, RANKS))
    for name in files:
        shutil.copy(case.old / name, case.new)
    return Expected(min(files), {"changed"})


@fault
def older_directory(case: Case) -> Expected:
    """Put the whole step before under the name of this one."""
    shutil.rmtree(case.new)
    shutil.copytree(case.old, case.new)
    return Expected(MANIFEST_NAME, {"mixed step"})


@fault
def older_manifest(case: Case) -> Expected:
    """Put the manifest, and perhaps `.metadata`, of the step before beside these files."""
    shutil.copy(case.old / MANIFEST_NAME, case.new)
    if case.dice.random() < 0.5:
        shutil.copy(case.old / ".metadata", case.new)
    return Expected(MANIFEST_NAME, {"mixed step"})


@fault
def missing(case: Case) -> Expected:
    """Lose a file, or the manifest."""
    path = case.dice.choice([some_file(case), case.new / MANIFEST_NAME])
    path.unlink()
    return Expected(path.name, {"missing"})


@fault
def missing_middle_shard(case: Case) -> Expected:
    """Lose the file of the rank in the middle."""
    (case.new / SHARDS[1]).unlink()
    return Expected(SHARDS[1], {"missing"})


@fault
def extra_file(case: Case) -> Expected:
    """Add the file of a rank that was not there."""
    name = f"__{RANKS}_0.distcp"
    shutil.copy(_shard(case), case.new / name)
    return Expected(name, {"extra"})


@fault
def duplicated_experts(case: Case) -> Expected:
    """Put the weights of one expert in the place of another's."""
    true = state(NEW, 0, 1)
    one, other = case.dice.sample(range(EXPERTS), 2)
    name = "model.layers.0.experts.{}.w1"
    weights, lost = (true[name.format(e)].numpy().tobytes() for e in (one, other))
    for shard in SHARDS:
        data = (case.new / shard).read_bytes()
        if lost in data:
            (case.new / shard).write_bytes(data.replace(lost, weights))
            return Expected(shard, {"changed"})
    raise AssertionError("no expert was found")


@fault
def empty_manifest(case: Case) -> Expected:
    """Leave the manifest with no bytes, or with zeros."""
    path = case.new / MANIFEST_NAME
    path.write_bytes(bytes(case.dice.choice([0, path.stat().st_size])))
    return Expected(MANIFEST_NAME, {"empty", "zeros"})


@fault
def edited_manifest(case: Case) -> Expected:
    """Edit the manifest: without its digest, or sealed again with something else in it."""
    manifest = read_manifest(case.new)
    path = case.new / MANIFEST_NAME
    kind = case.dice.randrange(5)
    if kind == 0:
        path.write_bytes(path.read_bytes().replace(b'"step":40', b'"step":41'))
        return Expected(MANIFEST_NAME, {"changed"})
    if kind == 1:
        write_manifest(case.new, msgspec.structs.replace(manifest, step=OLD))
        return Expected(MANIFEST_NAME, {"mixed step"})
    if kind == 2:
        write_manifest(case.new, msgspec.structs.replace(manifest, run="run-b"))
        return Expected(MANIFEST_NAME, {"other run"})
    if kind == 3:
        write_manifest(case.new, msgspec.structs.replace(manifest, experts=EXPERTS * 2))
        return Expected(MANIFEST_NAME, {"missing"})
    files = dict(manifest.files)
    a, b = sorted(case.dice.sample(SHARDS, 2))
    files[a], files[b] = files[b], files[a]
    write_manifest(case.new, msgspec.structs.replace(manifest, files=files))
    return Expected(a, {"swapped"})


@fault
def lost_results(case: Case) -> Expected:
    """Lose what a writer thread should have written, as torch 2.13 does without a word."""
    lost = case.dice.randrange(1, 4)
    with _forgetful_writer(lost):
        try:
            CheckpointStore(case.run, emit=Events()).save(
                state(NEW + 20), step=NEW + 20, iteration=0, attempt=2, extra={}
            )
        except SaveError:
            return Expected("", set(), NEW)
    raise AssertionError("a save that lost tensors reported success")


@contextmanager
def _forgetful_writer(lost: int) -> Iterator[None]:
    real = FileSystemWriter.write_data

    def forget(
        self: FileSystemWriter, plan: SavePlan, planner: SavePlanner
    ) -> Future[list[WriteResult]]:
        future: Future[list[WriteResult]] = Future()
        future.set_result(real(self, plan, planner).value()[lost:])
        return future

    FileSystemWriter.write_data = forget  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        FileSystemWriter.write_data = real  # type: ignore[method-assign]


def trial(clean: RunDirectory, scratch: Path, name: str, seed: int) -> list[str]:
    """Do one fault to a copy of a clean run and load; return what is wrong with the reaction."""
    run = RunDirectory(scratch / "run-a")
    shutil.copytree(clean.root, run.root)
    new, old = (run.checkpoints / f"step-{step:08d}" for step in (NEW, OLD))
    expected = FAULTS[name](Case(run, new, old, random.Random(f"{name} {seed}")))
    block = _first_difference(clean.checkpoints / new.name / expected.file, new / expected.file)
    events = Events()
    target = blank(state(OLD))
    restored = CheckpointStore(run, emit=events).load(target)
    shutil.rmtree(run.root)
    if restored is None:
        return ["nothing was loaded"]
    wrong = []
    if not equal(target, state(restored.step)):
        wrong.append(f"the values loaded are not those of step {restored.step}")
    if restored.step != expected.loads:
        wrong.append(f"loaded step {restored.step}, expected {expected.loads}")
    if expected.loads == NEW:
        return wrong + [f"refused {r.reason}" for r in restored.refused]
    told = events.of("checkpoint_refused")
    if len(told) != 1:
        return [*wrong, f"{len(told)} refusals, expected 1"]
    refusal = told[0]
    if refusal["file"] != expected.file or refusal["fault"] not in expected.words:
        wrong.append(f"said {refusal['reason']}, expected {expected}")
    placed = block is not None and refusal["fault"] in ("changed", "zeros")
    if placed and refusal["block"] != block:
        wrong.append(f"said block {refusal['block']}, expected {block}")
    if refusal["steps_lost"] != NEW - OLD:
        wrong.append(f"said {refusal['steps_lost']} steps are lost")
    return wrong


def clean_trial(clean: RunDirectory, scratch: Path, seed: int) -> list[str]:
    """Load a copy, every other one flipped and flipped back; return what is wrong with that."""
    run = RunDirectory(scratch / "run-a")
    shutil.copytree(clean.root, run.root)
    new, old = (run.checkpoints / f"step-{step:08d}" for step in (NEW, OLD))
    if seed % 2:
        dice = random.Random(seed)
        path = some_file(Case(run, new, old, dice))
        data = bytearray(path.read_bytes())
        at, bit = dice.randrange(len(data)), 1 << dice.randrange(8)
        for _ in range(2):
            data[at] ^= bit
            path.write_bytes(data)
    target = blank(state(NEW))
    restored = CheckpointStore(run, emit=Events()).load(target)
    shutil.rmtree(run.root)
    if restored is None or (restored.step, restored.refused) != (NEW, []):
        return [f"a clean checkpoint was refused: {restored and restored.refused}"]
    return [] if equal(target, state(NEW)) else ["wrong values from a clean checkpoint"]


def _first_difference(before: Path, after: Path) -> int | None:
    """Return the block of the first byte that differs; None when that is not the question."""
    if before.name == MANIFEST_NAME or not (before.is_file() and after.is_file()):
        return None
    a, b = before.read_bytes(), after.read_bytes()
    if len(a) != len(b):
        return None
    return next((at // BLOCK for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
