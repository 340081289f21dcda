"""Names of checkpoint directories, and the only ways in which a name changes.

Contract, all inside one `checkpoints/` directory of a run:

    step-00000040              committed: complete and durable when it got this name
    step-00000040.tmp-a0002    being written by attempt 2, or left over from it
    step-00000040.tmp-retired  on its way out
    step-00000040.bad-changed  quarantined, with the plain word of the fault; never deleted here

A change of a name is one rename, made durable. Only rank 0 of a run calls what writes here.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Literal

import msgspec

from tailwatch.files import fsync_directory
from tailwatch.integrity.manifest import Manifest, write_manifest

State = Literal["committed", "temporary", "quarantined"]

_NAME = re.compile(r"step-(\d{8,})(?:\.tmp-([a-z0-9-]+)|\.bad-([a-z0-9-]+))?")
_ATTEMPT = re.compile(r"a(\d+)")


class Candidate(msgspec.Struct, kw_only=True, frozen=True):
    """A directory that is or was meant to be a checkpoint; `attempt` of temporary ones only."""

    name: str
    path: Path
    step: int
    state: State
    attempt: int | None = None


def step_name(step: int) -> str:
    """Return the name of the committed checkpoint of a step."""
    return f"step-{step:08d}"


def temporary_name(step: int, attempt: int) -> str:
    """Return the name under which an attempt writes the checkpoint of a step."""
    return f"{step_name(step)}.tmp-a{attempt:04d}"


def parse_name(path: Path) -> Candidate | None:
    """Return what the name of a directory says, or None when it is not one of ours."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    step, temporary, quarantined = match.groups()
    state: State = "temporary" if temporary else "quarantined" if quarantined else "committed"
    attempt = _ATTEMPT.fullmatch(temporary or "")
    return Candidate(
        name=path.name,
        path=path,
        step=int(step),
        state=state,
        attempt=int(attempt[1]) if attempt else None,
    )


def candidates(checkpoints: Path) -> list[Candidate]:
    """Return what lies in a `checkpoints/` directory, newest step first, committed before the rest.

    A directory that is not there has no candidates. Nothing is opened.
    """
    try:
        names = os.listdir(checkpoints)
    except FileNotFoundError:
        return []
    found = [c for c in (parse_name(checkpoints / name) for name in names) if c is not None]
    order: tuple[State, ...] = ("committed", "temporary", "quarantined")
    return sorted(found, key=lambda c: (-c.step, order.index(c.state), c.name))


def commit(temporary: Path, manifest: Manifest) -> Path:
    """Turn a written directory into the committed checkpoint of `manifest.step`; return its path.

    The files must have been fsynced by whoever wrote them. Order: manifest, its fsync, the
    directory's fsync, the rename (this is the commit), the parent's fsync. A committed step is
    never replaced: FileExistsError.
    """
    final = temporary.parent / step_name(manifest.step)
    write_manifest(temporary, manifest)
    if final.exists():
        raise FileExistsError(f"{final} is committed already")
    os.rename(temporary, final)
    fsync_directory(final.parent)
    return final


def quarantine(directory: Path, reason: str) -> Path:
    """Rename a checkpoint to `<name>.bad-<reason>`, durably; return its new path.

    The name is made unique by a number. Nothing is ever deleted.
    """
    word = re.sub(r"[^a-z0-9]+", "-", reason.lower()).strip("-") or "bad"
    stem = directory.name.split(".", 1)[0]
    target = directory.with_name(f"{stem}.bad-{word}")
    number = 2
    while os.path.lexists(target):
        target = directory.with_name(f"{stem}.bad-{word}-{number}")
        number += 1
    os.rename(directory, target)
    fsync_directory(directory.parent)
    return target


def remove_committed(directory: Path) -> None:
    """Delete a committed checkpoint so that a kill in between leaves no half of one by its name."""
    retired = directory.with_name(f"{directory.name}.tmp-retired")
    shutil.rmtree(retired, ignore_errors=True)
    os.rename(directory, retired)
    shutil.rmtree(retired)


def remove_leftovers(checkpoints: Path, attempt: int) -> list[str]:
    """Delete temporary directories of `attempt` and older attempts; return their names."""
    old = [
        c
        for c in candidates(checkpoints)
        if c.state == "temporary" and (c.attempt is None or c.attempt <= attempt)
    ]
    for candidate in old:
        shutil.rmtree(candidate.path)
    return [c.name for c in old]
