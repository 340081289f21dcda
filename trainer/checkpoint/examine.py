"""Looking at one checkpoint together: each rank its share of the files, one verdict for all.

Contract: nothing live is touched. Damage that any rank saw counts only when rank 0 finds it, too:
a stale view of a shared disk must not cost a good checkpoint. What is damaged is set aside, never
deleted. Cost: each rank reads its share once; one gather and one broadcast.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from tailwatch.integrity import (
    Candidate,
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


def look(ranks: Ranks, run: str, path: Path, state: State) -> tuple[list[Sight], Manifest | None]:
    """Verify a checkpoint, each rank its share; return what all saw and the manifest here."""
    seen: list[Manifest | None] = [None]

    def mine_only() -> Sight:
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


def agree(ranks: Ranks, run: str, candidate: Candidate, sights: list[Sight]) -> Refusal | None:
    """Agree on a checkpoint: None when it is valid, else quarantine it and say why."""
    if not any(s.problems for s in sights) and len({s.save_id for s in sights}) == 1:
        return None

    def confirm() -> Refusal | None:
        # What another rank saw counts only when it is there for rank 0, too: a stale view of
        # a shared disk must not cost a good checkpoint.
        finding = verify(candidate.path, run=run)
        if not finding.problems:
            return None
        first = finding.problems[0]
        moved = quarantine(candidate.path, first.fault)
        return Refusal(
            checkpoint=candidate.name,
            step=candidate.step,
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
            f"{candidate.path}: nothing is wrong with it for rank 0,"
            f" but {'; '.join(texts) or 'ranks see different saves of the step'}"
        )
    return refusal


def _misfits(manifest: Manifest, state: State) -> list[str]:
    texts = []
    for fqn, tensor in state.items():
        if fqn not in manifest.tensors:
            texts.append(f"it has no {fqn}")
        elif manifest.tensors[fqn] != list(tensor.shape):
            found, expected = manifest.tensors[fqn], list(tensor.shape)
            texts.append(f"{fqn} has shape {found}, expected {expected}")
    return texts
