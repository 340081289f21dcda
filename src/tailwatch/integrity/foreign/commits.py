"""What pointers mean for the checkpoints that they name, or name in vain.

Contract: a pointer to nothing becomes a checkpoint that is missing, first in the list, because that
is what the loader will ask for. For Megatron and DeepSpeed the pointer is the commit, so a newer
step was never finished; elsewhere it is a hint and changes nothing.

Source: megatron/training/checkpointing.py (`load_checkpoint`), deepspeed/runtime/engine.py.
"""

from __future__ import annotations

from collections.abc import Collection

from tailwatch.integrity.foreign import trackers
from tailwatch.integrity.foreign.findings import Judgement
from tailwatch.integrity.foreign.tree import Entry


def apply(
    pointers: list[Entry], names: Collection[str], found: list[Judgement], known: str
) -> str | None:
    """Judge the pointers of a directory against the checkpoints `found` there, newest first.

    `names` is everything beside them, `known` the format. Adds flaws and missing checkpoints to
    `found`; returns the name that is committed to, None where every sound checkpoint will do.
    """
    pinned = None
    for entry in pointers:
        pointer = trackers.read(entry, names)
        phantom = _point(pointer, found, known)
        if phantom is not None:
            found.insert(0, phantom)
        elif pointer.target is not None and _is_commit(pointer, known):
            pinned = pointer.target
            _uncommitted(pointer, found)
    if not found and pointers:
        found.append(_point_at_nothing(pointers))
    _without_tracker(known, names, found)
    return pinned


def _is_commit(pointer: trackers.Pointer, known: str) -> bool:
    return (pointer.name, known) in {
        (trackers.MEGATRON, "megatron"),
        (trackers.DEEPSPEED, "deepspeed"),
    }


def _point(pointer: trackers.Pointer, found: list[Judgement], known: str) -> Judgement | None:
    """Return the checkpoint that a pointer names in vain, or None."""
    if not pointer.problem:
        return None
    if pointer.target is None:
        if found:
            text = f"is named by nothing: {pointer.name} {pointer.problem}"
            found[0].add("", "pointer", text, "doubtful")
        return None
    phantom = next((j for j in found if j.name == pointer.target), None)
    if phantom is not None:
        return None
    text = f"is missing: {pointer.name} {pointer.problem}"
    same = next((j.name for j in found if j.step is not None and j.step == pointer.step), None)
    if same is not None:
        text += f"; layout mismatch: {same} is here, in the layout of {known}"
    elif found:
        newest = next((j.name for j in found if j.state == "committed"), None)
        text += f"; the newest that is here is {newest}" if newest else ""
    judgement = Judgement(name=pointer.target, step=pointer.step, format=known)
    judgement.add("", "dangling", text, "missing")
    return judgement


def _point_at_nothing(pointers: list[Entry]) -> Judgement:
    judgement = Judgement(name=pointers[0].name, step=None, format="unknown")
    text = "is a pointer without data: no checkpoint is here, all of them are missing"
    judgement.add("", "missing", text, "missing")
    return judgement


def _without_tracker(known: str, names: Collection[str], found: list[Judgement]) -> None:
    tracker = {"megatron": trackers.MEGATRON, "deepspeed": trackers.DEEPSPEED}.get(known)
    if tracker is not None and tracker not in names:
        text = f"is named by nothing: {tracker} is missing, so a restart must be told the step"
        found[0].add("", "pointer", text, "note")


def _uncommitted(pointer: trackers.Pointer, found: list[Judgement]) -> None:
    if pointer.step is None:
        return
    for judgement in found:
        if judgement.step is not None and judgement.step > pointer.step:
            text = f"was never committed: {pointer.name} still names {pointer.target}"
            judgement.add("", "uncommitted", text, "unfinished")
