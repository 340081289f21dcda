"""`.metadata` of torch.distributed.checkpoint: where every piece of every tensor lies.

Contract: `read_table` follows the pickle without running it and gives the places of all items. The
table must agree with itself: pieces add up to their tensors, each has a place, and no place is
outside the checkpoint.

Source: torch/distributed/checkpoint/metadata.py.

Cost: about 1 s for each 1 to 2 MiB.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

import msgspec

from tailwatch.integrity.foreign import contents, torch_save
from tailwatch.integrity.foreign.findings import Damage, Judgement
from tailwatch.integrity.foreign.names import parse_step
from tailwatch.integrity.foreign.pickles import PICKLE_BYTES, Made, lookup
from tailwatch.integrity.foreign.pickles import load as load_pickle
from tailwatch.integrity.foreign.tree import Entry, Opened


class Place(msgspec.Struct, frozen=True):
    """An item of the checkpoint: name, where it lies, and the bytes of its elements if a tensor."""

    name: str
    file: str
    offset: int
    length: int
    elements: int | None


class Table(msgspec.Struct, frozen=True):
    """What `.metadata` says: the places of all items, and the step in the path of the save."""

    places: list[Place]
    step: int | None


def read_table(entry: Entry, folder: str, judgement: Judgement) -> Table | None:
    """Return what `.metadata` says, None when it cannot be used, with the flaw noted."""
    name = entry.name
    if entry.size == 0:
        judgement.add(name, "empty", "is empty: 0 bytes")
        return None
    if entry.size > PICKLE_BYTES:
        text = f"is too large to be looked at: {entry.size} bytes"
        judgement.add(name, "too large", text, "doubtful")
        return None
    try:
        with Opened(entry.path) as window:
            data = window.read(0, window.size)
            contents.sniff(window)
        loaded = load_pickle(data)
        if loaded.length != len(data):
            extra = len(data) - loaded.length
            raise Damage("longer", f"is longer than it was written: {extra} bytes follow its end")
        step = _where_saved(loaded.value, name, judgement)
        return Table(_places(loaded.value, folder), step)
    except Damage as damage:
        judgement.damaged(name, damage)
    except OSError:
        judgement.add(name, "unreadable", "is unreadable: it cannot be read", "unreadable")
    return None


def _where_saved(value: Any, name: str, judgement: Judgement) -> int | None:
    """Return the step in the path that the save went to, and doubt when it is another."""
    saved_at = lookup(lookup(value, "storage_meta"), "checkpoint_id")
    parts = saved_at.args if isinstance(saved_at, Made) else (saved_at,)
    last = parts[-1] if isinstance(parts, tuple) and parts else None
    step = parse_step(PurePosixPath(last).name) if isinstance(last, str) else None
    if step is not None and judgement.step is not None and step != judgement.step:
        text = f"says that step {step} was saved, perhaps a mixed step: the directory says"
        judgement.add(name, "mixed", f"{text} {judgement.step}", "doubtful")
    return step


def _places(value: Any, folder: str) -> list[Place]:
    tensors = lookup(value, "state_dict_metadata")
    storage = lookup(value, "storage_data")
    if not isinstance(tensors, dict) or not isinstance(storage, dict):
        raise Damage("changed", "is changed: it is no table of tensors and places")
    placed: set[tuple[str, tuple[int, ...] | None]] = set()
    places = []
    for index, info in storage.items():
        fqn, offset = lookup(index, "fqn"), _size(lookup(index, "offset"))
        file, start, length = (lookup(info, k) for k in ("relative_path", "offset", "length"))
        if not (isinstance(fqn, str) and isinstance(file, str)):
            raise Damage("changed", "is changed: one of its places has no name or file")
        if not (isinstance(start, int) and isinstance(length, int) and min(start, length) >= 0):
            raise Damage("changed", f"is changed: the place of {fqn} is no range of bytes")
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or "\0" in file:
            raise Damage("changed", f"is changed: the file of {fqn} lies outside the checkpoint")
        elements = _elements(tensors.get(fqn), offset)
        packed = bool(lookup(info, "transform_descriptors"))
        places.append(Place(fqn, f"{folder}{file}", start, length, -1 if packed else elements))
        placed.add((fqn, offset))
    for fqn, tensor in tensors.items():
        if isinstance(lookup(tensor, "chunks"), list):
            for offset in _chunks(fqn, tensor):
                if (fqn, offset) not in placed:
                    text = f"has no place for a piece of {fqn}: its data is missing in every file"
                    raise Damage("missing", text)
        elif (fqn, None) not in placed:
            raise Damage("missing", f"has no place for {fqn}: it is missing in every file")
    return places


def _chunks(fqn: str, tensor: Any) -> list[tuple[int, ...] | None]:
    """Return the offsets of the pieces of a tensor, which must add up to it."""
    whole = _size(lookup(tensor, "size"))
    offsets, covered = [], 0
    for chunk in lookup(tensor, "chunks"):
        sizes, offset = _size(lookup(chunk, "sizes")), _size(lookup(chunk, "offsets"))
        if sizes is None or offset is None:
            raise Damage("changed", f"is changed: a piece of {fqn} has no size")
        covered += math.prod(sizes)
        offsets.append(offset)
    if whole is None or covered != math.prod(whole):
        raise Damage("changed", f"is changed: the pieces of {fqn} do not add up to it")
    return list(offsets)


def _elements(tensor: Any, offset: tuple[int, ...] | None) -> int | None:
    """Return the bytes of the elements of a piece, None where they are not known."""
    width = torch_save.ITEM_BYTES.get(getattr(_dtype(tensor), "name", ""))
    chunks = lookup(tensor, "chunks")
    for chunk in chunks if width is not None and isinstance(chunks, list) else []:
        if _size(lookup(chunk, "offsets")) == offset:
            return math.prod(_size(lookup(chunk, "sizes")) or ()) * (width or 0)
    return None


def _dtype(tensor: Any) -> Any:
    properties = lookup(tensor, "properties")
    state = properties.state if isinstance(properties, Made) else None
    # `TensorProperties.__getstate__` gives a tuple: dtype, layout, requires_grad, ...
    return state[0] if isinstance(state, tuple) and state else lookup(properties, "dtype")


def _size(value: Any) -> tuple[int, ...] | None:
    """Return what a `torch.Size` holds."""
    match value:
        case Made(args=(tuple() as numbers,)) if all(isinstance(n, int) for n in numbers):
            return numbers
    return None
