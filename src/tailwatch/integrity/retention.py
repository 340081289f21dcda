"""Which checkpoints may go: the newest few stay, and never goes the last one that is known good.

Contract: `retain` deletes committed checkpoints only, and only such as are older than the newest
*verified* one. It works from the manifests on disk, so it needs no memory of earlier calls. What
looks damaged is neither counted nor deleted, nor is what was quarantined: it is evidence.

Cost: one manifest read per checkpoint; a full pass over the newest when nobody has verified it.
"""

from __future__ import annotations

from pathlib import Path

from tailwatch.integrity.names import candidates, remove_committed
from tailwatch.integrity.verify import verify


def retain(checkpoints: Path, keep: int, *, verified_step: int | None = None) -> list[str]:
    """Delete committed checkpoints beyond the newest `keep`; return the names of those deleted.

    Args:
        checkpoints: the `checkpoints/` directory of a run.
        keep: how many to leave, at least 1.
        verified_step: a step whose bytes the caller has just verified. Without it the newest valid
            one is searched by reading; when there is none, nothing is deleted.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}, expected at least 1")
    committed = [c for c in candidates(checkpoints) if c.state == "committed"]
    if len(committed) <= keep:
        return []
    if verified_step is None:
        verified_step = next((c.step for c in committed if verify(c.path).verdict == "valid"), None)
        if verified_step is None:
            return []
    # Without `files` nothing but the manifest and the set of files is looked at.
    sound = [c for c in committed if verify(c.path, files=()).verdict == "valid"]
    removed = []
    for candidate in sound[keep:]:
        if candidate.step < verified_step:
            remove_committed(candidate.path)
            removed.append(candidate.name)
    return removed
