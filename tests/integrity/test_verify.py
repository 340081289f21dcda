"""The one definition of a valid checkpoint, fault by fault."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from support.checkpoints import flip, write_plain
from tailwatch.integrity import MANIFEST_NAME, Problem, read_manifest, share, verify, write_manifest

STEP = 40
FILES = {
    "__0_0.distcp": random.Random(0).randbytes(300),
    "__1_0.distcp": random.Random(1).randbytes(300),
    "__2_0.distcp": random.Random(2).randbytes(150),
    ".metadata": random.Random(3).randbytes(90),
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A committed checkpoint of step 40, blocks of 64 bytes, with one of step 20 beside it."""
    older = {name: data[::-1] for name, data in FILES.items()}
    write_plain(tmp_path / "step-00000020", older, step=20)
    write_plain(tmp_path / "step-00000040", FILES, step=STEP)
    return tmp_path / "step-00000040"


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files of a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_what_was_written_is_valid(checkpoint: Path) -> None:
    """An untouched checkpoint is valid, every byte was read, and nothing was changed by looking."""
    before = contents(checkpoint)
    finding = verify(checkpoint, run="run")
    assert finding.verdict == "valid"
    assert finding.problems == []
    assert finding.bytes_read == sum(len(data) for data in FILES.values())
    assert contents(checkpoint) == before


def overwrite(name: str, offset: int, data: bytes) -> Callable[[Path], None]:
    """Return a fault that writes bytes into a file."""

    def fault(directory: Path) -> None:
        content = bytearray((directory / name).read_bytes())
        content[offset : offset + len(data)] = data
        (directory / name).write_bytes(content)

    return fault


def swap(directory: Path) -> None:
    """Exchange the files of two ranks."""
    (directory / "__0_0.distcp").rename(directory / "x")
    (directory / "__1_0.distcp").rename(directory / "__0_0.distcp")
    (directory / "x").rename(directory / "__1_0.distcp")


def swap_sizes(directory: Path) -> None:
    """Put the bytes of one rank's file, of another size, under the name of another rank's."""
    shutil.copy(directory / "__2_0.distcp", directory / "__0_0.distcp")


def older_shard(directory: Path) -> None:
    """Take one file from the step before."""
    shutil.copy(directory.parent / "step-00000020" / "__1_0.distcp", directory)


def older_directory(directory: Path) -> None:
    """Put the whole step before under the name of this one."""
    shutil.rmtree(directory)
    shutil.copytree(directory.parent / "step-00000020", directory)


def resealed(directory: Path) -> None:
    """Edit the manifest and give it a right digest of its own."""
    manifest = read_manifest(directory)
    write_manifest(directory, msgspec.structs.replace(manifest, step=STEP + 1))


def replace(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return a fault that replaces the contents of a file."""

    def fault(directory: Path) -> None:
        (directory / name).write_bytes(change((directory / name).read_bytes()))

    return fault


def remove(name: str) -> Callable[[Path], None]:
    """Return a fault that removes a file."""
    return lambda directory: (directory / name).unlink()


def older_manifest(directory: Path) -> None:
    """Put the manifest of the step before beside the files of this one."""
    shutil.copy(directory.parent / "step-00000020" / MANIFEST_NAME, directory)


def extra(directory: Path) -> None:
    """Add a file that the manifest does not name."""
    (directory / "__3_0.distcp").write_bytes(b"x")


def dangling(directory: Path) -> None:
    """Make a file a link to nothing."""
    (directory / ".metadata").unlink()
    (directory / ".metadata").symlink_to("gone")


class Fault(NamedTuple):
    """A fault and how it must be named."""

    name: str
    inject: Callable[[Path], None]
    verdict: str
    file: str
    word: str
    block: int | None


S0, S1, S2 = "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"
FAULTS = [
    Fault("flip", lambda d: flip(d / S0, 130), "corrupt", S0, "changed", 2),
    Fault(
        "flip in .metadata",
        lambda d: flip(d / ".metadata", 0),
        "corrupt",
        ".metadata",
        "changed",
        0,
    ),
    Fault("zero block", overwrite(S1, 64, bytes(64)), "corrupt", S1, "zeros", 1),
    Fault("zero last block", overwrite(S2, 128, bytes(22)), "corrupt", S2, "zeros", 2),
    Fault("truncated", replace(S0, lambda data: data[:200]), "corrupt", S0, "truncated", 3),
    Fault("longer", replace(S0, lambda data: data + b"x"), "corrupt", S0, "longer", 4),
    Fault("empty", replace(S2, lambda _: b""), "corrupt", S2, "empty", 0),
    Fault("swapped", swap, "corrupt", S0, "swapped", 0),
    Fault("swapped, sizes differ", swap_sizes, "corrupt", S0, "swapped", 0),
    Fault("older shard", older_shard, "corrupt", S1, "changed", 0),
    Fault("older directory", older_directory, "corrupt", MANIFEST_NAME, "mixed step", None),
    Fault("older manifest", older_manifest, "corrupt", MANIFEST_NAME, "mixed step", None),
    Fault("resealed", resealed, "corrupt", MANIFEST_NAME, "mixed step", None),
    Fault(
        "manifest empty",
        replace(MANIFEST_NAME, lambda _: b""),
        "corrupt",
        MANIFEST_NAME,
        "empty",
        None,
    ),
    Fault(
        "manifest flip",
        lambda d: flip(d / MANIFEST_NAME, 9),
        "corrupt",
        MANIFEST_NAME,
        "changed",
        None,
    ),
    Fault("manifest missing", remove(MANIFEST_NAME), "incomplete", MANIFEST_NAME, "missing", None),
    Fault("missing", remove(S1), "incomplete", S1, "missing", None),
    Fault("extra", extra, "corrupt", "__3_0.distcp", "extra", None),
    Fault("link to nothing", dangling, "incomplete", ".metadata", "missing", None),
]


@pytest.mark.parametrize("fault", FAULTS, ids=[f.name for f in FAULTS])
def test_a_fault_is_named_with_its_file_and_block(checkpoint: Path, fault: Fault) -> None:
    """Each fault gets its verdict, its plain word, the right file and the right block."""
    fault.inject(checkpoint)
    finding = verify(checkpoint)
    assert finding.verdict == fault.verdict
    first = finding.problems[0]
    assert (first.file, first.fault, first.block) == (fault.file, fault.word, fault.block)


def test_every_bad_block_is_listed(checkpoint: Path) -> None:
    """Two damaged blocks of one file are two problems."""
    flip(checkpoint / "__0_0.distcp", 0)
    flip(checkpoint / "__0_0.distcp", 299)
    assert [p.block for p in verify(checkpoint).problems] == [0, 4]


def test_another_run_is_refused_only_when_the_run_is_given(checkpoint: Path) -> None:
    """A checkpoint of another run is corrupt for this run, and valid by itself."""
    assert verify(checkpoint).verdict == "valid"
    finding = verify(checkpoint, run="another")
    assert [p.fault for p in finding.problems] == ["other run"]


def test_a_subset_of_files_still_checks_the_set(checkpoint: Path) -> None:
    """Asked for one file, only its bytes are read, but a missing other file is seen."""
    flip(checkpoint / "__1_0.distcp", 5)
    assert verify(checkpoint, files=["__0_0.distcp"]).verdict == "valid"
    (checkpoint / "__2_0.distcp").unlink()
    assert verify(checkpoint, files=["__0_0.distcp"]).verdict == "incomplete"


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_shares_cover_every_file_once(checkpoint: Path, world_size: int) -> None:
    """Together the ranks verify every file, and none twice."""
    manifest = read_manifest(checkpoint)
    shares = [share(manifest, rank, world_size) for rank in range(world_size)]
    assert sorted(name for files in shares for name in files) == sorted(FILES)


def test_directories_that_are_no_checkpoint(tmp_path: Path) -> None:
    """No directory and no files are empty; files of others are unverifiable, not corrupt."""
    assert verify(tmp_path / "step-00000001").verdict == "empty"
    (tmp_path / "step-00000002").mkdir()
    assert verify(tmp_path / "step-00000002").verdict == "empty"
    (tmp_path / "global_step5").mkdir()
    (tmp_path / "global_step5" / "model.pt").write_bytes(b"x")
    assert verify(tmp_path / "global_step5").verdict == "unverifiable"
    assert verify(tmp_path / "global_step5" / "model.pt").verdict == "unverifiable"


def test_an_unknown_schema_is_not_called_damage(checkpoint: Path) -> None:
    """A manifest of a later version is unverifiable here."""
    manifest = read_manifest(checkpoint)
    write_manifest(checkpoint, msgspec.structs.replace(manifest, schema="tailwatch.checkpoint/9"))
    assert verify(checkpoint).verdict == "unverifiable"


def test_a_problem_reads_as_a_sentence() -> None:
    """A problem prints its file, block, plain word and detail."""
    problem = Problem(file="a", fault="truncated", block=2, detail="3 bytes, expected 4")
    assert str(problem) == "a, block 2: truncated (3 bytes, expected 4)"
