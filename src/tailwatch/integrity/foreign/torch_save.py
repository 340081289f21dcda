"""Files of `torch.save`: the zip of today, and the row of pickles of before torch 1.6.

Contract: `read` checks what the file carries. A zip: every member against its CRC-32, and that each
storage which `data.pkl` refers to is there in its size. The old form has no checksums: only that
all its parts are there. The returned `value` is what was saved, in stand-ins; tensors are
`Made("torch._utils._rebuild_tensor_v2", ...)`.

torch itself never compares the CRC-32 that it writes, so "it loads" says nothing about the bytes.

Cost: one pass over the file.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailwatch.integrity.foreign import archive
from tailwatch.integrity.foreign.findings import Damage
from tailwatch.integrity.foreign.pickles import PICKLE_BYTES, Made, lookup
from tailwatch.integrity.foreign.pickles import load as load_pickle
from tailwatch.integrity.foreign.tree import Window

ITEM_BYTES = {
    "torch.float64": 8,
    "torch.double": 8,
    "torch.complex64": 8,
    "torch.complex128": 16,
    "torch.int64": 8,
    "torch.float32": 4,
    "torch.int32": 4,
    "torch.float16": 2,
    "torch.bfloat16": 2,
    "torch.int16": 2,
    "torch.int8": 1,
    "torch.uint8": 1,
    "torch.bool": 1,
    "torch.DoubleStorage": 8,
    "torch.LongStorage": 8,
    "torch.ComplexDoubleStorage": 16,
    "torch.ComplexFloatStorage": 8,
    "torch.FloatStorage": 4,
    "torch.IntStorage": 4,
    "torch.HalfStorage": 2,
    "torch.BFloat16Storage": 2,
    "torch.ShortStorage": 2,
    "torch.CharStorage": 1,
    "torch.ByteStorage": 1,
    "torch.BoolStorage": 1,
    "torch.storage.UntypedStorage": 1,
}
"""Bytes of one element, by the name of a dtype or of a storage class."""

# What the old form begins with: the pickle of one magic number, and the one of its version.
_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


class Saved(msgspec.Struct):
    """What a file holds. `checked`: all of it was compared with checksums.

    `storages` has the offset and size in bytes, in the window, of each storage by its key.
    """

    value: Any
    checked: bool
    storages: dict[str, tuple[int, int]] = {}


def read(window: Window) -> Saved:
    """Check one file; raise Damage for the first thing that is wrong with it."""
    head = window.read(0, 16)
    if head.startswith(archive.SIGNATURE):
        return _zip(window)
    if head.startswith(_LEGACY):
        return _legacy(window)
    if head[:1] == b"\x80":
        return _plain_pickle(window)
    raise Damage("changed", "is changed: it does not begin like a file of torch.save")


def storages_of(references: list[Any]) -> dict[str, int | None]:
    """Return the size in bytes of each storage that persistent ids name, None where unknown."""
    sizes: dict[str, int | None] = {}
    for reference in references:
        match reference:
            case ("storage", Made(name=kind), str(key), _, int(count), *_):
                width = ITEM_BYTES.get(kind)
                sizes[key] = None if width is None else width * count
    return sizes


def scalar(window: Window, saved: Saved) -> int | None:
    """Return the number, when what was saved is one integer or an int64 tensor of one element."""
    if isinstance(saved.value, int) and not isinstance(saved.value, bool):
        return saved.value
    if len(saved.storages) != 1 or not isinstance(saved.value, Made):
        return None
    ((offset, size),) = saved.storages.values()
    if size != 8 or "LongStorage" not in repr(saved.value.args)[:200]:
        return None
    return int.from_bytes(window.read(offset, 8), "little", signed=True)


def _zip(window: Window) -> Saved:
    found = archive.members(window)
    checked = archive.check(window, found)
    if not found:
        raise Damage("empty", "is empty: an archive without members")
    top = found[0].name.partition("/")[0]
    by_name = {member.name.removeprefix(f"{top}/"): member for member in found}
    pickle = by_name.get("data.pkl")
    if pickle is None:
        raise Damage("missing", "is changed: data.pkl is missing inside it")
    if pickle.size > PICKLE_BYTES:
        return Saved(value=None, checked=checked)
    loaded = load_pickle(window.read(pickle.offset, pickle.packed))
    storages: dict[str, tuple[int, int]] = {}
    for key, size in storages_of(loaded.references).items():
        member = by_name.get(f"data/{key}")
        if member is None:
            raise Damage("missing", f"is changed: its storage data/{key} is missing inside it")
        if size is not None and member.size != size:
            text = f"is changed: data/{key} has {member.size} bytes, data.pkl says {size}"
            raise Damage("changed", text)
        storages[key] = (member.offset, member.size)
    return Saved(value=loaded.value, checked=checked, storages=storages)


def _legacy(window: Window) -> Saved:
    data = window.read(0, PICKLE_BYTES)
    position = 0
    pickles = []
    for _ in range(5):
        pickles.append(load_pickle(data[position:]))
        position += pickles[-1].length
    keys = pickles[4].value
    sizes = storages_of(pickles[3].references)
    storages = {}
    for key in keys if isinstance(keys, list) else []:
        size = sizes.get(key) if isinstance(key, str) else None
        if size is None:
            return Saved(value=pickles[3].value, checked=False)
        # Each storage is its count of elements in eight bytes, then the elements.
        storages[key] = (position + 8, size)
        position += 8 + size
    if window.size < position:
        text = f"is truncated: it has {window.size} bytes, its storages need {position}"
        raise Damage("truncated", text)
    if window.size > position:
        raise Damage("longer", f"is longer than it was written: {position} bytes are expected")
    return Saved(value=pickles[3].value, checked=False, storages=storages)


def _plain_pickle(window: Window) -> Saved:
    if window.size > PICKLE_BYTES:
        raise Damage("too large", "is a pickle too large to be looked at", "doubtful")
    loaded = load_pickle(window.read(0, window.size))
    if loaded.length != window.size:
        extra = window.size - loaded.length
        raise Damage("longer", f"is longer than it was written: {extra} bytes follow its end")
    return Saved(value=loaded.value, checked=False)


def number(value: Any, *keys: str) -> int | None:
    """Return the integer under the first of some keys of a saved dict or object, or None."""
    for key in keys:
        found = lookup(value, key)
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    return None
