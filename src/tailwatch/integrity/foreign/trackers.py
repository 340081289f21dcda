"""Pointers to the newest checkpoint: what they name, and whether it is there.

Contract: a pointer is a link or a small text file. White space and zeros around the text do not
count; an empty pointer names nothing; `release` is a name of Megatron and no number; a number means
an iteration in the layout of the tracker; of a path, also one of another machine, its last part.
Where the target is not there the pointer is dangling, which is worse than no pointer: the loader
fails, or begins from random weights.

Source: megatron/training/checkpointing.py (`read_metadata`), deepspeed/runtime/engine.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import PurePosixPath

import msgspec

from tailwatch.integrity.foreign.findings import Damage
from tailwatch.integrity.foreign.names import parse_step, shown
from tailwatch.integrity.foreign.tree import Entry, Opened

MEGATRON = "latest_checkpointed_iteration.txt"
DEEPSPEED = "latest"
_NAME = re.compile(
    r"latest|latest_checkpointed_iteration\.txt|latest_(?:universal|iteration|checkpoint|step)"
    r"(?:\.txt)?|latest\.txt|last_checkpoint|checkpoint",
    re.IGNORECASE,
)
_LINK = re.compile(r"latest.*|last.*|best|current|newest", re.IGNORECASE)


class Pointer(msgspec.Struct, kw_only=True, frozen=True):
    """One pointer. `target` is the name that it resolves to, None with a `problem`.

    `problem` is a clause with the plain word of the fault; `dangling` when the target is not there.
    """

    name: str
    target: str | None
    step: int | None
    problem: str = ""
    dangling: bool = False


def is_pointer(entry: Entry) -> bool:
    """Whether an entry is a pointer by its name, or a link with the name of a step to nothing."""
    if os.path.islink(entry.path) and _LINK.fullmatch(entry.name):
        return True
    if _NAME.fullmatch(entry.name):
        return entry.kind != "directory"
    return entry.kind in ("dangling", "loop") and parse_step(entry.name) is not None


def read(entry: Entry, names: Collection[str]) -> Pointer:
    """Return what a pointer names among the `names` beside it."""
    if os.path.islink(entry.path):
        target = PurePosixPath(os.readlink(entry.path)).name
        there = entry.kind in ("directory", "file")
        problem = "" if there else f"is dangling: {shown(target)} is missing"
        if entry.kind == "loop":
            problem = "is dangling: it leads back to itself in a loop"
        return Pointer(
            name=entry.name,
            target=target,
            step=parse_step(target),
            problem=problem,
            dangling=not there,
        )
    try:
        text = _text(entry)
    except Damage as damage:
        return Pointer(name=entry.name, target=None, step=None, problem=damage.text)
    target = _target(entry.name, text, names)
    step = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else parse_step(target)
    if target in names:
        return Pointer(name=entry.name, target=target, step=step)
    problem = f"is dangling: it names {shown(text[:200])}, and {shown(target[:200])} is missing"
    return Pointer(name=entry.name, target=target, step=step, problem=problem, dangling=True)


def _text(entry: Entry) -> str:
    try:
        with Opened(entry.path) as window:
            data = window.read(0, 4096)
    except OSError as error:
        raise Damage("unreadable", "is unreadable") from error
    if data and not data.strip(b"\0"):
        raise Damage("zeros", "holds nothing but zeros, so it names no checkpoint")
    text = data.strip(b"\0 \t\r\n").decode("utf-8", "backslashreplace")
    if text.startswith("model_checkpoint_path:"):
        text = text.splitlines()[0].partition(":")[2].strip(' "')
    if not text:
        raise Damage("empty", "is empty, so it names no checkpoint")
    if len(text.splitlines()) > 1:
        raise Damage("changed", "is changed: it has more than one line")
    return text


def _target(pointer: str, text: str, names: Collection[str]) -> str:
    """Return the name that a text means, whether it is there or not."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        if pointer == MEGATRON:
            return f"iter_{int(text):07d}"
        step = int(text)
        return min((name for name in names if parse_step(name) == step), default=text)
    return PurePosixPath(text).name or text
