"""torch.distributed.checkpoint: `.metadata` against the shards, and each item's own checksums.

Contract: `.metadata` is read without running it. Every piece of every tensor must have a place, the
places must fill each file from end to end, and each place must hold an item of `torch.save` in the
right size whose CRC-32 matches. Without `.metadata`, which rank 0 writes last, nothing was
committed. A shard may be of any size, and a rank may have none.

What cannot be seen: `.metadata` has no checksum, and nothing binds a shard to its rank or step, so
two swapped shards, or those of another step, pass; a plain directory is never more than
`unverifiable`. What hints at it is said: an item `step`, or the path that the save went to. A save
that agrees with itself and not with the directory was copied or renamed, which is a doubt; a shard
that contradicts both is of another step, which is corrupt.

Source: torch/distributed/checkpoint/filesystem.py.

Cost: one pass over the shards, and what `dcp_table` costs.
"""

from __future__ import annotations

import re

from tailwatch.integrity.foreign import archive, contents, safetensors, torch_save
from tailwatch.integrity.foreign.dcp_table import Place, read_table
from tailwatch.integrity.foreign.findings import Damage, Effect, Judgement
from tailwatch.integrity.foreign.tree import Entry, Opened, Tree, Window

METADATA = ".metadata"
SHARD = re.compile(r"__(\d+)_(\d+)\.distcp")
_OWN_METADATA = re.compile(r"__(\d+)\.metadata")
_STEPS = ("step", "iteration", "global_step", "train_step")


def recognises(tree: Tree, folder: str) -> bool:
    """Whether the files right in a folder are those of a save."""
    return any(
        entry.base == METADATA or SHARD.fullmatch(entry.base) or _OWN_METADATA.fullmatch(entry.base)
        for entry in tree.files(folder)
    )


def check(tree: Tree, folder: str, judgement: Judgement) -> set[str]:
    """Judge the save in a folder; return the names of the files that were dealt with."""
    shards = {e.name for e in tree.files(folder) if e.base.endswith(".distcp")}
    committed = [e for e in tree.files(folder) if e.base == METADATA]
    if not committed:
        committed = _own_metadata(tree, folder, judgement)
    if not committed:
        _uncommitted(tree, folder, shards, judgement)
        return shards
    tables = [read_table(entry, folder, judgement) for entry in committed]
    handled = shards | {entry.name for entry in committed}
    judgement.unchecked |= {entry.name for entry in committed}
    by_file: dict[str, list[Place]] = {}
    saved: int | None = None
    for table in tables:
        if table is None:
            for name in sorted(shards):
                _empty(tree.entries[name], judgement)
            return handled
        saved = table.step
        for place in table.places:
            by_file.setdefault(place.file, []).append(place)
    for name, held in sorted(by_file.items()):
        shard = tree.entries.get(name)
        if shard is None:
            text = f"is missing: {committed[0].base} places {len(held)} items in it"
            judgement.add(name, "missing", text, "missing")
        elif shard.kind == "file":
            handled.add(name)
            _shard(shard, held, saved, judgement)
    for name in sorted(shards - set(by_file)):
        text = f"is extra: {committed[0].base} does not know it, so it is left from another save"
        judgement.add(name, "extra", text, "doubtful")
    judgement.world = "any"
    return handled


def _own_metadata(tree: Tree, folder: str, judgement: Judgement) -> list[Entry]:
    """A save without collectives leaves one `__R.metadata` a rank and nothing for all."""
    found = {
        int(match[1]): entry
        for entry in tree.files(folder)
        if (match := _OWN_METADATA.fullmatch(entry.base))
    }
    for rank in range(min(max(found, default=-1), 100_000)):
        if rank not in found:
            name = f"{folder}__{rank}.metadata"
            judgement.add(name, "missing", f"is missing: rank {rank} never finished", "missing")
    return [found[rank] for rank in sorted(found)]


def _uncommitted(tree: Tree, folder: str, shards: set[str], judgement: Judgement) -> None:
    leftover = tree.file(f"{folder}{METADATA}.tmp")
    text = f"is missing: {len(shards)} shards are there, but the save was never finished"
    if leftover is not None:
        text += f"; {METADATA}.tmp was left over before its rename"
    if f"{folder}{METADATA}" not in tree.entries:
        judgement.add(f"{folder}{METADATA}", "missing", text, "unfinished")
    for name in sorted(shards):
        entry = tree.entries[name]
        if not _empty(entry, judgement):
            _last_item(entry, judgement)


def _empty(entry: Entry, judgement: Judgement) -> bool:
    if entry.size == 0:
        judgement.add(entry.name, "empty", "is empty: 0 bytes")
    return entry.size == 0


def _last_item(entry: Entry, judgement: Judgement) -> None:
    # A shard is a row of zip archives, so a whole one ends like a zip archive.
    with Opened(entry.path) as window:
        if window.read(0, 4) != archive.SIGNATURE:
            return
        if window.read(window.size - 22, 4) != b"PK\x05\x06":
            text = f"is truncated: it ends after {window.size} bytes, in the middle of an item"
            judgement.add(entry.name, "truncated", text)


def _shard(entry: Entry, held: list[Place], saved: int | None, judgement: Judgement) -> None:
    if _empty(entry, judgement):
        return
    try:
        with Opened(entry.path) as window:
            contents.sniff(window)
            if window.read(0, 4) != archive.SIGNATURE and _is_safetensors(window):
                _safetensors(window, held)
                judgement.unchecked.add(entry.name)
            else:
                _items(entry, window, held, saved, judgement)
    except Damage as damage:
        judgement.damaged(entry.name, damage)
    except OSError:
        judgement.add(entry.name, "unreadable", "is unreadable: it cannot be read", "unreadable")


def _items(
    entry: Entry, window: Window, held: list[Place], saved_step: int | None, judgement: Judgement
) -> None:
    end = 0
    held = sorted(held, key=lambda place: (place.offset, place.length))
    need = held[-1].offset + held[-1].length
    if window.size < need:
        zeros = " (and what is there ends in zeros)" if window.trailing_zeros() >= 64 else ""
        text = f"is truncated: it has {window.size} bytes, .metadata places data up to {need}"
        raise Damage("truncated", text + zeros)
    for place in held:
        if place.offset != end:
            text = f"is changed: .metadata leaves a gap or an overlap before {place.name} in it"
            raise Damage("changed", text)
        end = place.offset + place.length
    if window.size != need:
        text = f"is longer than it was written: {window.size} bytes, .metadata knows of {need}"
        raise Damage("longer", text)
    for place in held:
        if place.elements == -1:
            judgement.unchecked.add(entry.name)
            continue
        part = window.within(place.offset, place.length)
        try:
            saved = torch_save.read(part)
        except Damage as damage:
            text = f"{damage.text} (item {place.name} at byte {place.offset})"
            raise Damage(damage.fault, text, damage.effect) from damage
        if not saved.checked:
            judgement.unchecked.add(entry.name)
        total = sum(size for _, size in saved.storages.values())
        if place.elements is not None and place.elements != total:
            text = f"is swapped or mixed: item {place.name} has {total} bytes of elements in it,"
            raise Damage("swapped", f"{text} .metadata says {place.elements}")
        if place.name in _STEPS:
            held_step = torch_save.scalar(part, saved)
            _step(entry, place, held_step, saved_step, judgement)


def _step(
    entry: Entry, place: Place, held: int | None, saved: int | None, judgement: Judgement
) -> None:
    # A counter may be one ahead or behind, by the trainer's habit.
    if held is None or judgement.step is None or abs(held - judgement.step) <= 1:
        return
    # The path of the save agrees with the directory, so it is the shard that is foreign.
    alone = saved == judgement.step
    effect: Effect = "corrupt" if alone else "doubtful"
    text = f"is {'' if alone else 'perhaps '}of a mixed step: it holds {held} as {place.name},"
    text += " the directory says"
    judgement.add(entry.name, "mixed", f"{text} {judgement.step}", effect)


def _is_safetensors(window: Window) -> bool:
    return window.read(8, 1) == b"{"


def _safetensors(window: Window, held: list[Place]) -> None:
    tensors = safetensors.read(window)
    for place in held:
        if place.name not in tensors:
            raise Damage("mixed", f"is mixed: it does not hold {place.name}, as .metadata says")
