"""What a valid checkpoint is: the one definition used by save, load, retention, audit and chaos.

Contract: `verify` is a pure function of a directory. Valid means: the manifest matches its own
digest, is meant for this step (the directory's name) and this run, the directory holds exactly the
files it names, each has its size, and every block of the files asked for has its digest.

Verdicts: `valid`; `corrupt` (bytes are not what was written); `incomplete` (files are missing,
nothing else is wrong); `empty` (no file at all); `unverifiable` (nothing to check the bytes with).

Faults, as plain words: missing, empty, truncated, longer, zeros, swapped, changed, extra,
mixed step, other run, unreadable, unknown schema. Swapped means: these are the bytes of another
file of the same checkpoint.

Errors: an I/O error of the disk (EIO) is a fault of the file; any other OSError is raised, because
it says nothing about the checkpoint.

Cost: one pass over the files asked for, at memory speed when they are cached.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tailwatch.integrity.blocks import digest, file_digests
from tailwatch.integrity.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    ManifestError,
    count_experts,
    decode_manifest,
)
from tailwatch.integrity.names import parse_name

CheckpointVerdict = Literal["valid", "corrupt", "incomplete", "unverifiable", "empty"]


class Problem(msgspec.Struct, kw_only=True, frozen=True):
    """One thing that is wrong: the fault in a plain word, its file, and its block where known."""

    file: str
    fault: str
    block: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        place = "" if self.block is None else f", block {self.block}"
        more = f" ({self.detail})" if self.detail else ""
        return f"{self.file}{place}: {self.fault}{more}"


class Finding(msgspec.Struct, kw_only=True):
    """The verdict on one directory, with the problems it rests on and the manifest when readable.

    `bytes_read` counts the bytes compared with digests.
    """

    verdict: CheckpointVerdict
    problems: list[Problem] = []
    manifest: Manifest | None = None
    bytes_read: int = 0


def verify(
    directory: Path,
    *,
    files: Sequence[str] | None = None,
    run: str | None = None,
    step: int | None = None,
) -> Finding:
    """Judge one checkpoint directory; nothing is changed.

    Args:
        directory: the checkpoint. Its name gives the step it must hold, when it is one of ours.
        files: whose sizes and blocks to check, None for all. The set of files is always checked.
        run: the run it must belong to, None for any.
        step: the step it must hold, where the name does not say it.
    """
    named = parse_name(directory)
    if step is None and named is not None:
        step = named.step
    try:
        present = set(os.listdir(directory))
    except FileNotFoundError:
        missing = Problem(file=directory.name, fault="missing", detail="no such directory")
        return Finding(verdict="empty", problems=[missing])
    except NotADirectoryError:
        alien = Problem(file=directory.name, fault="unverifiable", detail="not a directory")
        return Finding(verdict="unverifiable", problems=[alien])
    if not present:
        nothing = Problem(file=directory.name, fault="empty", detail="no files")
        return Finding(verdict="empty", problems=[nothing])
    try:
        manifest = decode_manifest((directory / MANIFEST_NAME).read_bytes())
    except FileNotFoundError:
        absent = Problem(file=MANIFEST_NAME, fault="missing")
        verdict: CheckpointVerdict = "incomplete" if named else "unverifiable"
        return Finding(verdict=verdict, problems=[absent])
    except ManifestError as error:
        bad = Problem(file=MANIFEST_NAME, fault=error.fault, detail=error.detail)
        return Finding(
            verdict="unverifiable" if error.fault == "unknown schema" else "corrupt",
            problems=[bad],
        )
    except OSError as error:
        return Finding(verdict="corrupt", problems=[_unreadable(MANIFEST_NAME, error)])

    problems = _identity(manifest, run, step)
    expected = set(manifest.files) | {MANIFEST_NAME}
    problems += [Problem(file=name, fault="missing") for name in sorted(expected - present)]
    problems += [Problem(file=name, fault="extra") for name in sorted(present - expected)]
    finding = Finding(verdict="valid", problems=problems, manifest=manifest)
    for name in sorted(manifest.files if files is None else files):
        if name in present and name in manifest.files:
            found, size = _verify_file(directory, name, manifest.files)
            finding.problems += found
            finding.bytes_read += size
    finding.verdict = verdict_of(finding.problems)
    return finding


def verdict_of(problems: Iterable[Problem]) -> CheckpointVerdict:
    """Return the verdict that problems of files amount to."""
    faults = {problem.fault for problem in problems}
    if not faults:
        return "valid"
    return "incomplete" if faults == {"missing"} else "corrupt"


def share(manifest: Manifest, rank: int, world_size: int) -> list[str]:
    """Return the files that one of `world_size` ranks checks: all are covered, sizes balanced."""
    loads = [0] * world_size
    mine = []
    for name, entry in sorted(manifest.files.items(), key=lambda item: (-item[1].size, item[0])):
        owner = loads.index(min(loads))
        loads[owner] += max(entry.size, 1)
        if owner == rank:
            mine.append(name)
    return mine


def _identity(manifest: Manifest, run: str | None, step: int | None) -> list[Problem]:
    problems = []
    if step is not None and manifest.step != step:
        detail = f"holds step {manifest.step}, expected {step}"
        problems.append(Problem(file=MANIFEST_NAME, fault="mixed step", detail=detail))
    if run is not None and manifest.run != run:
        detail = f"belongs to run {manifest.run}, expected {run}"
        problems.append(Problem(file=MANIFEST_NAME, fault="other run", detail=detail))
    try:
        experts = count_experts(manifest.tensors)
    except ValueError as error:
        return [*problems, Problem(file=MANIFEST_NAME, fault="missing", detail=str(error))]
    if manifest.experts is not None and experts != manifest.experts:
        detail = f"names {experts or 0} experts, expected {manifest.experts}"
        problems.append(Problem(file=MANIFEST_NAME, fault="missing", detail=detail))
    return problems


def _verify_file(
    directory: Path, name: str, files: dict[str, FileEntry]
) -> tuple[list[Problem], int]:
    entry = files[name]
    try:
        size = os.stat(directory / name).st_size
        if size == 0 and entry.size:
            return [Problem(file=name, fault="empty", block=0, detail="0 bytes")], 0
        if size != entry.size and not any(e.size == size for e in files.values()):
            return [_wrong_size(name, entry, size)], 0
        size, digests = file_digests(directory / name, entry.block_bytes)
    except FileNotFoundError:
        return [Problem(file=name, fault="missing", detail="link to nothing")], 0
    except IsADirectoryError:
        return [Problem(file=name, fault="changed", detail="is a directory")], 0
    except OSError as error:
        return [_unreadable(name, error)], 0
    if size == entry.size and digests == entry.digests:
        return [], size
    for other, twin in sorted(files.items()):
        if other != name and digests == twin.digests and size == twin.size:
            detail = f"holds the bytes of {other}"
            return [Problem(file=name, fault="swapped", block=0, detail=detail)], size
    if size != entry.size:
        return [_wrong_size(name, entry, size)], size
    return [
        Problem(
            file=name,
            fault="zeros" if found == _zeros_digest(entry, block) else "changed",
            block=block,
            detail=f"digest {found}, expected {expected}",
        )
        for block, (found, expected) in enumerate(zip(digests, entry.digests, strict=True))
        if found != expected
    ], size


def _zeros_digest(entry: FileEntry, block: int) -> str:
    return digest(bytes(min(entry.block_bytes, entry.size - block * entry.block_bytes)))


def _wrong_size(name: str, entry: FileEntry, size: int) -> Problem:
    return Problem(
        file=name,
        fault="truncated" if size < entry.size else "longer",
        block=min(size, entry.size) // entry.block_bytes,
        detail=f"{size} bytes, expected {entry.size}",
    )


def _unreadable(name: str, error: OSError) -> Problem:
    if error.errno != errno.EIO:
        raise error
    return Problem(file=name, fault="unreadable", detail=error.strerror or "I/O error")
