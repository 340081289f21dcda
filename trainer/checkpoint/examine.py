"""Looking at one checkpoint together: each rank its share of the files, one verdict for all.

Contract: nothing live is touched. Damage that any rank saw counts only when rank 0 finds it, too:
a stale view of a shared disk must not cost a good checkpoint. On NFS a host may see an old listing
until its attribute cache ends, so a rank that does not see what rank 0 sees waits for it a bounded
time. What is damaged is set aside, never deleted. Cost: each rank reads its share once; one
broadcast and one gather, a second broadcast when something is wrong.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import torch

from tailwatch.integrity import (
    Manifest,
    ManifestError,
    Problem,
    quarantine,
    read_manifest,
    share,
    verify,
)
from tailwatch.trainer.checkpoint.errors import SplitViewError
from tailwatch.trainer.checkpoint.ranks import Ranks

# NFS keeps the attributes of a directory for up to 60 s (acdirmax).
VIEW_SECONDS = 65.0

State = dict[str, torch.Tensor]


class Refusal(msgspec.Struct, kw_only=True):
    """A checkpoint that was not loaded: its first problem of `problems`, and where it lies now."""

    checkpoint: str
    step: int
    file: str
    block: int | None
    fault: str
    reason: str
    problems: int
    quarantined_as: str


class Sight(msgspec.Struct, kw_only=True):
    """What one rank saw of a checkpoint: the problems of its share, and whose files they are."""

    save_id: str
    problems: list[Problem]
    misfits: list[str]
    bytes_read: int


def look(
    ranks: Ranks, run: str, path: Path, state: State, view_seconds: float = VIEW_SECONDS
) -> tuple[list[Sight], Manifest | None]:
    """Verify a checkpoint, each rank its share; return what all saw and the manifest here."""
    seen: list[Manifest | None] = [None]
    save_id = ranks.decide(lambda: _save_id(path))

    def mine_only() -> Sight:
        await_view(path, save_id, view_seconds)
        try:
            mine = share(read_manifest(path), ranks.rank, ranks.size)
        except (OSError, ManifestError):
            mine = []  # `verify` says what is wrong with it.
        finding = verify(path, files=mine, run=run)
        seen[0] = finding.manifest
        return Sight(
            save_id=finding.manifest.save_id if finding.manifest else "",
            problems=finding.problems,
            misfits=_misfits(finding.manifest, state) if finding.manifest else [],
            bytes_read=finding.bytes_read,
        )

    return ranks.gather(mine_only), seen[0]


def await_view(path: Path, save_id: str, seconds: float) -> None:
    """Wait until this host sees the checkpoint that rank 0 sees, at most so many seconds."""
    deadline = time.monotonic() + seconds
    while save_id and _save_id(path) != save_id and time.monotonic() < deadline:
        os.listdir(path.parent)  # makes NFS ask the server again
        time.sleep(0.2)


def agree(ranks: Ranks, run: str, path: Path, step: int, sights: list[Sight]) -> Refusal | None:
    """Agree on a checkpoint: None when it is valid, else quarantine it and say why."""
    if not any(s.problems for s in sights) and len({s.save_id for s in sights}) == 1:
        return None

    def confirm() -> Refusal | None:
        # What another rank saw counts only when it is there for rank 0, too: a stale view of
        # a shared disk must not cost a good checkpoint.
        finding = verify(path, run=run)
        if not finding.problems:
            return None
        first = finding.problems[0]
        moved = quarantine(path, first.fault)
        return Refusal(
            checkpoint=path.name,
            step=step,
            file=first.file,
            block=first.block,
            fault=first.fault,
            reason=str(first),
            problems=len(finding.problems),
            quarantined_as=moved.name,
        )

    refusal = ranks.decide(confirm)
    if refusal is None:
        texts = [f"rank {r} sees {s.problems[0]}" for r, s in enumerate(sights) if s.problems]
        raise SplitViewError(
            f"{path}: nothing is wrong with it for rank 0,"
            f" but {'; '.join(texts) or 'ranks see different saves of the step'}",
            reason="split view",
        )
    return refusal


def _save_id(path: Path) -> str:
    try:
        return read_manifest(path).save_id
    except (OSError, ManifestError):
        return ""


def _misfits(manifest: Manifest, state: State) -> list[str]:
    texts = []
    for fqn, tensor in state.items():
        if fqn not in manifest.tensors:
            texts.append(f"it has no {fqn}")
        elif manifest.tensors[fqn] != list(tensor.shape):
            found, expected = manifest.tensors[fqn], list(tensor.shape)
            texts.append(f"{fqn} has shape {found}, expected {expected}")
    return texts
