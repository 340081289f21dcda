"""Which checkpoints others have left in a directory, newest first, and which a restart would load.

Contract: `survey` takes a file, one checkpoint, or a directory of them, finds out which it is, and
judges each. What a name or a marker beside it calls unfinished is listed and never a candidate for
a restart. A pointer to nothing is listed as the checkpoint that it names, first, because that is
what the loader asks for. For Megatron and DeepSpeed the pointer is the commit: a newer step was
never finished. Elsewhere it is a hint.

Cost: one pass over everything, see the formats.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tailwatch.integrity.foreign import (
    commits,
    dcp,
    deepspeed,
    hugging_face,
    likeness,
    megatron,
    trackers,
)
from tailwatch.integrity.foreign.contents import MARKER
from tailwatch.integrity.foreign.findings import Judgement
from tailwatch.integrity.foreign.judging import LOOSE, ORBAX, judge_directory, judge_file
from tailwatch.integrity.foreign.names import is_temporary, labelled_step, parse_step
from tailwatch.integrity.foreign.tree import Entry, Tree, children, entry_of

UNFINISHED = "-unfinished"
"""What NeMo puts beside a checkpoint while it writes it."""

_NAMED = ("release", "last", "best", "final", "latest")
_BELOW = ("checkpoints", "checkpoint", "ckpt", "ckpts", "weights", "out")


class Survey(msgspec.Struct, kw_only=True):
    """What lies at a path: its format in a word, and the checkpoints, newest first.

    `pinned` is the name that a tracker commits to, None where every sound one is a candidate.
    """

    format: str
    found: list[Judgement]
    pinned: str | None = None


def survey(path: Path) -> Survey:
    """Look at a path that exists; OSError when the directory itself cannot be listed."""
    if not path.is_dir():
        entry = entry_of(path, path.name)
        judgement = judge_file(entry)
        return Survey(format=judgement.format, found=[judgement])
    here = children(path)
    if _is_one(path, here):
        judgement = judge_directory(path, path.resolve().name, by=labelled_step)
        _unfinished(judgement, {e.name for e in children(path.resolve().parent)})
        likeness.compare_ranks(judgement, Tree.scan(path).files())
        return Survey(format=judgement.format, found=[judgement])
    folders = _checkpoints(here)
    parts = _are_parts(path, folders)
    if parts:
        folders = []
    pointers = [entry for entry in here if trackers.is_pointer(entry)]
    loose = [e for e in here if e.kind == "file" and e.name.lower().endswith(LOOSE)]
    if not folders and not pointers:
        if not loose:
            return _deeper(path, here, parts)
        if not any(map(_stands_alone, loose)):
            # Files without a step in their names are the parts of one checkpoint.
            judgement = judge_directory(path, path.resolve().name, by=labelled_step)
            return Survey(format=judgement.format, found=[judgement])
    return _collection(here, folders, loose, pointers)


def _are_parts(path: Path, folders: list[Entry]) -> bool:
    """Whether directories are the parts of one checkpoint, as `model/` and `optim/` are."""
    if not folders or any(parse_step(e.name) is not None or e.name in _NAMED for e in folders):
        return False
    return len(folders) > 1 or parse_step(path.resolve().name) is not None


def _stands_alone(entry: Entry) -> bool:
    """Whether a loose file is a checkpoint of its own, as Lightning's and NeMo's are."""
    return parse_step(entry.name) is not None or entry.name.lower().endswith((".ckpt", ".nemo"))


def _is_one(path: Path, here: list[Entry]) -> bool:
    """Whether the directory itself is a checkpoint and not one of several in it."""
    if any(e.kind == "directory" and e.name.startswith("checkpoint-") for e in here):
        return False
    tree = Tree(root=path, entries={e.name: e for e in here}, whole=True)
    if any(f.recognises(tree, "") for f in (dcp, deepspeed, megatron, hugging_face)):
        return True
    if any(e.name in ORBAX or MARKER.fullmatch(e.name) for e in here):
        return True
    names = {e.name for e in here if e.kind == "directory"}
    return {"weights", "context"} <= names


def _checkpoints(here: list[Entry]) -> list[Entry]:
    """Return the directories that are checkpoints by their name or by what is in them."""
    found = []
    for entry in here:
        if entry.kind != "directory" or os.path.islink(entry.path):
            continue
        temporary = is_temporary(entry.name)
        if labelled_step(entry.name) is not None or entry.name in _NAMED:
            found.append(entry)
            continue
        if parse_step(entry.name) is not None:
            # Any number may be that of a run, which has checkpoints of its own in it.
            if not _holds_checkpoints(entry):
                found.append(entry)
            continue
        try:
            inside = children(entry.path)
        except OSError:
            continue
        if _is_one(entry.path, inside) or (temporary and inside):
            found.append(entry)
    return found


def _deeper(path: Path, here: list[Entry], parts: bool) -> Survey:
    """Nothing here: go down into the one directory that there is, or say where to look."""
    folders = [e for e in here if e.kind == "directory"]
    known = [e for e in folders if e.name in _BELOW] or folders
    if len(known) == 1 and len(path.parts) < 64 and not parts:
        return survey(known[0].path)
    if not here:
        return Survey(format="unknown", found=[])
    several = [e.name for e in folders if _holds_checkpoints(e)]
    if several:
        judgement = Judgement(name=path.resolve().name, step=None, format="unknown")
        names = ", ".join(several[:5])
        text = f"holds several directories of checkpoints, look at them one by one: {names}"
        judgement.add("", "several", text, "unreadable")
    else:
        judgement = judge_directory(path, path.resolve().name, by=labelled_step)
    return Survey(format=judgement.format, found=[judgement])


def _holds_checkpoints(folder: Entry) -> bool:
    try:
        return any(
            trackers.is_pointer(e) or (e.kind == "directory" and parse_step(e.name) is not None)
            for e in children(folder.path)
        )
    except OSError:
        return False


def _collection(
    here: list[Entry], folders: list[Entry], loose: list[Entry], pointers: list[Entry]
) -> Survey:
    trees = {entry.name: Tree.scan(entry.path) for entry in folders}
    found = [judge_directory(e.path, e.name, trees[e.name]) for e in folders]
    files = {entry.name: trees[entry.name].files() for entry in folders}
    for entry in filter(_stands_alone, loose):
        found.append(judge_file(entry))
        files[entry.name] = [entry]
    names = {entry.name for entry in here}
    for judgement in found:
        _unfinished(judgement, names)
    found.sort(key=_age)
    known = _prevailing(found)
    committed = [(j, files[j.name]) for j in found if j.state == "committed"]
    _compare_roles(committed)
    likeness.compare_steps(committed)
    for judgement, entries in committed:
        likeness.compare_ranks(judgement, entries)
    pinned = commits.apply(pointers, names, found, known)
    return Survey(format=known, found=found, pinned=pinned)


def _age(judgement: Judgement) -> tuple[bool, int, str]:
    """Newest first, what was never committed last, what has no step after what has one."""
    step = -1 if judgement.step is None else judgement.step
    return judgement.state != "committed", -step, judgement.name


def _prevailing(found: list[Judgement]) -> str:
    formats = [j.format for j in found if j.format not in ("unknown", "empty")]
    return formats[0] if formats else "unknown"


def _unfinished(judgement: Judgement, beside: set[str]) -> None:
    name = judgement.name
    stem = name.removesuffix(".ckpt").removesuffix("-last")
    marks = {f"{name}{UNFINISHED}", f"{stem}{UNFINISHED}", f"{stem}-last{UNFINISHED}"} & beside
    if is_temporary(name):
        judgement.state = "temporary"
        whole = judgement.verdict in ("valid", "unverifiable")
        state = "complete in content" if whole else "not complete either"
        text = f"is a left-over of an unfinished rename: its name says tmp, and it is {state}"
        judgement.add("", "left-over", text, "unfinished")
    elif marks:
        text = f"is unfinished: {min(marks)} was left beside it when the save was cut off"
        judgement.add("", "unfinished", text, "unfinished")


def _compare_roles(found: list[tuple[Judgement, list[Entry]]]) -> None:
    """What every older checkpoint beside it has, a newer one must have, too."""
    for at, (judgement, entries) in enumerate(found):
        older = [files for other, files in found[at + 1 :] if other.loadable]
        if not older or judgement.format not in ("hugging_face", "deepspeed", "megatron", "dcp"):
            continue
        if judgement.format == "dcp":
            _compare_counts(judgement, entries, found[at + 1][0].name, older[0])
            continue
        roles = {_role(e) for e in older[0]}
        for files in older[1:]:
            roles &= {_role(e) for e in files}
        for role in sorted(roles - {_role(e) for e in entries} - {""}):
            text = "is missing: the checkpoints before it have it"
            judgement.add(role, "missing", text, "missing")


def _compare_counts(
    judgement: Judgement, entries: list[Entry], name: str, older: list[Entry]
) -> None:
    mine = sum(e.base.endswith(".distcp") for e in entries)
    theirs = sum(e.base.endswith(".distcp") for e in older)
    if mine < theirs and not judgement.loadable:
        judgement.add("", "missing", f"has {mine} shards, {name} has {theirs}", "missing")


def _role(entry: Entry) -> str:
    """Return the name of a file that is the same in every checkpoint; "" for those of ranks."""
    if any(char.isdigit() for char in entry.name) or not entry.name.endswith(
        (".pt", ".bin", ".safetensors", ".pth", "trainer_state.json")
    ):
        return ""
    return entry.name
