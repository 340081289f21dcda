"""The corruption matrix: seeded faults in a real checkpoint, judged by the values that are loaded.

The oracle is independent of every verdict: whatever the store says, the tensors must be exactly
those of the step it claims to have restored.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from support.checkpoints import Events, blank, equal, new_run, on_ranks, save_steps, state
from tailwatch.integrity import MANIFEST_NAME, read_manifest, write_manifest
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint import CheckpointStore

OLD, NEW = 20, 40
PAGE = 4096
Expected = tuple[str, set[str]]  # the file that must be named, and the words that may be used


def _save(rank: int, world_size: int, root: Path) -> None:
    save_steps(RunDirectory(root), [OLD, NEW], rank, world_size)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run with steps 20 and 40, saved by two ranks: two files of tensors each."""
    run = new_run(tmp_path_factory.mktemp("clean") / "run-a")
    assert on_ranks(2, _save, run.root) == [None, None]
    return run


def _some_file(new: Path, dice: random.Random) -> Path:
    return new / dice.choice(sorted(read_manifest(new).files))


def _shard(new: Path, dice: random.Random) -> Path:
    return new / dice.choice(["__0_0.distcp", "__1_0.distcp"])


def flip(new: Path, old: Path, dice: random.Random) -> Expected:
    """Flip one bit anywhere in any file."""
    path = _some_file(new, dice)
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    return path.name, {"changed"}


def flip_manifest(new: Path, old: Path, dice: random.Random) -> Expected:
    """Flip one bit of the manifest."""
    data = bytearray((new / MANIFEST_NAME).read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    (new / MANIFEST_NAME).write_bytes(data)
    return MANIFEST_NAME, {"changed", "truncated"}


def truncate(new: Path, old: Path, dice: random.Random) -> Expected:
    """Cut a file short: to nothing, by one byte, at a page, anywhere."""
    path = _some_file(new, dice)
    size = path.stat().st_size
    keep = dice.choice([0, size - 1, size // PAGE * PAGE, dice.randrange(size)])
    with path.open("r+b") as file:
        file.truncate(min(keep, size - 1))
    return path.name, {"truncated", "empty"}


def zero_page(new: Path, old: Path, dice: random.Random) -> Expected:
    """Fill a page with zeros."""
    path = _shard(new, dice)
    data = bytearray(path.read_bytes())
    page = dice.randrange(len(data) // PAGE)
    data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    path.write_bytes(data)
    return path.name, {"changed"}


def zero_file(new: Path, old: Path, dice: random.Random) -> Expected:
    """Keep the length of a file and nothing else."""
    path = _some_file(new, dice)
    path.write_bytes(bytes(path.stat().st_size))
    return path.name, {"zeros"}


def torn(new: Path, old: Path, dice: random.Random) -> Expected:
    """Leave the tail of a file as it was at the step before."""
    path = _shard(new, dice)
    data, before = path.read_bytes(), (old / path.name).read_bytes()
    cut = dice.randrange(100, len(data) - 2000)
    path.write_bytes(data[:cut] + before[cut:])
    return path.name, {"changed"}


def swap(new: Path, old: Path, dice: random.Random) -> Expected:
    """Exchange the files of the two ranks."""
    a, b = new / "__0_0.distcp", new / "__1_0.distcp"
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    return a.name, {"swapped"}


def older_shard(new: Path, old: Path, dice: random.Random) -> Expected:
    """Take one rank's file from the step before."""
    path = _shard(new, dice)
    shutil.copy(old / path.name, path)
    return path.name, {"changed"}


def older_directory(new: Path, old: Path, dice: random.Random) -> Expected:
    """Put the whole step before under the name of this one."""
    shutil.rmtree(new)
    shutil.copytree(old, new)
    return MANIFEST_NAME, {"mixed step"}


def older_manifest(new: Path, old: Path, dice: random.Random) -> Expected:
    """Put the manifest, and perhaps `.metadata`, of the step before beside these files."""
    shutil.copy(old / MANIFEST_NAME, new)
    if dice.random() < 0.5:
        shutil.copy(old / ".metadata", new)
    return MANIFEST_NAME, {"mixed step"}


def missing(new: Path, old: Path, dice: random.Random) -> Expected:
    """Lose a file, or the manifest."""
    path = dice.choice([_some_file(new, dice), new / MANIFEST_NAME])
    path.unlink()
    return path.name, {"missing"}


def extra(new: Path, old: Path, dice: random.Random) -> Expected:
    """Add the file of a rank that was not there."""
    shutil.copy(old / "__0_0.distcp", new / "__2_0.distcp")
    return "__2_0.distcp", {"extra"}


def empty_manifest(new: Path, old: Path, dice: random.Random) -> Expected:
    """Leave the manifest with no bytes, or with zeros."""
    size = (new / MANIFEST_NAME).stat().st_size
    (new / MANIFEST_NAME).write_bytes(bytes(dice.choice([0, size])))
    return MANIFEST_NAME, {"empty", "zeros"}


def edited_manifest(new: Path, old: Path, dice: random.Random) -> Expected:
    """Edit the manifest: without its digest, or resealed with another step, run or digests."""
    manifest = read_manifest(new)
    kind = dice.randrange(4)
    if kind == 0:
        data = (new / MANIFEST_NAME).read_bytes()
        (new / MANIFEST_NAME).write_bytes(data.replace(b'"step":40', b'"step":41'))
        return MANIFEST_NAME, {"changed"}
    if kind == 1:
        write_manifest(new, msgspec.structs.replace(manifest, step=OLD))
        return MANIFEST_NAME, {"mixed step"}
    if kind == 2:
        write_manifest(new, msgspec.structs.replace(manifest, run="run-b"))
        return MANIFEST_NAME, {"other run"}
    files = dict(manifest.files)
    files["__0_0.distcp"], files["__1_0.distcp"] = files["__1_0.distcp"], files["__0_0.distcp"]
    write_manifest(new, msgspec.structs.replace(manifest, files=files))
    return "__0_0.distcp", {"swapped"}


FAULTS: list[Callable[[Path, Path, random.Random], Expected]] = [
    flip,
    flip_manifest,
    truncate,
    zero_page,
    zero_file,
    torn,
    swap,
    older_shard,
    older_directory,
    older_manifest,
    missing,
    extra,
    empty_manifest,
    edited_manifest,
]


@pytest.mark.parametrize("fault", FAULTS, ids=[f.__name__ for f in FAULTS])
def test_no_fault_is_loaded(
    clean: RunDirectory, tmp_path: Path, fault: Callable[[Path, Path, random.Random], Expected]
) -> None:
    """Whatever is done to the newest checkpoint, the one before is loaded, the fault named."""
    for seed in range(16):
        run = RunDirectory(tmp_path / str(seed) / "run-a")
        shutil.copytree(clean.root, run.root)
        new, old = run.checkpoints / "step-00000040", run.checkpoints / "step-00000020"
        file, words = fault(new, old, random.Random(f"{fault.__name__} {seed}"))
        events = Events()
        target = blank(state(OLD))
        restored = CheckpointStore(run, emit=events).load(target)
        assert restored is not None
        assert equal(target, state(restored.step)), f"seed {seed}: wrong values loaded in silence"
        assert restored.step == OLD, f"seed {seed}"
        [refused] = events.of("checkpoint_refused")
        assert refused["file"] == file, f"seed {seed}"
        assert refused["fault"] in words, f"seed {seed}"
        assert refused["steps_lost"] == NEW - OLD
        assert (run.checkpoints / refused["quarantined_as"]).is_dir()
        assert not new.exists()
        if refused["fault"] in ("changed", "zeros", "swapped") and file != MANIFEST_NAME:
            assert refused["block"] == 0, f"seed {seed}"


def test_nothing_clean_is_refused(clean: RunDirectory, tmp_path: Path) -> None:
    """A copy, and a copy whose bytes were flipped and flipped back, is loaded as it is."""
    for seed in range(20):
        run = RunDirectory(tmp_path / str(seed) / "run-a")
        shutil.copytree(clean.root, run.root)
        if seed % 2:
            path = _some_file(run.checkpoints / "step-00000040", random.Random(seed))
            data = path.read_bytes()
            path.write_bytes(data[:9] + bytes([data[9] ^ 4]) + data[10:])
            path.write_bytes(data)
        events = Events()
        target = blank(state(NEW))
        restored = CheckpointStore(run, emit=events).load(target)
        assert restored is not None
        assert (restored.step, restored.refused) == (NEW, [])
        assert equal(target, state(NEW))
        assert events.of("checkpoint_refused") == []
