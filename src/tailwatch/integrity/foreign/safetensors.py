"""safetensors files: the header against the size of the file, and an index against its shards.

Contract: `read` checks that the tensors' places fill the rest of the file from end to end without
overlap, each in the size that its shape and dtype need; so a cut or grown file cannot pass.
The bytes themselves have no checksum: nothing here makes a file valid, only complete.

Format: the safetensors README (eight bytes of header size, JSON header of at most 100 MB, data).

Cost: the header is read, and zeros at the end of the file.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from tailwatch.integrity.foreign.findings import Damage, Judgement
from tailwatch.integrity.foreign.tree import Tree, Window

HEADER_BYTES = 100_000_000

_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
_SHARD = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\.safetensors|\.bin)")


class Tensor(msgspec.Struct, frozen=True):
    """One entry of a header; `data_offsets` are bytes after the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, Any] | None = None


def read(window: Window) -> dict[str, Tensor]:
    """Return the tensors by name; raise Damage for what does not fit."""
    if window.size < 8:
        raise Damage("truncated", f"is truncated: {window.size} bytes, a header alone needs more")
    length = int.from_bytes(window.read(0, 8), "little")
    if length > HEADER_BYTES:
        raise Damage("changed", f"is changed: its first bytes claim a header of {length} bytes")
    if length > window.size - 8:
        text = f"is truncated: it has {window.size} bytes, its header alone needs {length + 8}"
        raise Damage("truncated", text)
    raw = window.read(8, length)
    tensors = _header(raw)
    end = 0
    last = None
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        begin, stop = tensor.data_offsets
        if begin != end or stop < begin:
            kind = "a gap" if begin > end else "an overlap"
            raise Damage("changed", f"is changed: {kind} before tensor {name} in its header")
        bits = _BITS.get(tensor.dtype)
        if bits is None:
            raise Damage("changed", f"is changed: dtype {tensor.dtype} of tensor {name} is unknown")
        if min(tensor.shape, default=0) < 0 or math.prod(tensor.shape) * bits != (stop - begin) * 8:
            raise Damage("changed", f"is changed: shape and size of tensor {name} do not agree")
        end, last = stop, tensor
    have = window.size - 8 - length
    if have != end:
        word = "truncated" if have < end else "longer"
        text = f"is {word}: its header places {end} bytes of tensors, {have} are there"
        raise Damage(word, text)
    if last is not None:
        _look_for_zeros(window.within(8 + length, end), last)
    return tensors


def check_index(tree: Tree, name: str, tensors: dict[str, set[str]], judgement: Judgement) -> None:
    """Check an index (`*.safetensors.index.json`, `*.bin.index.json`) against the shards there.

    `tensors` has the names in each shard that could be read.
    """
    entry = tree.entries[name]
    try:
        index = msgspec.json.decode(entry.path.read_bytes(), type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        judgement.add(name, "changed", "is changed: it is no index with a weight_map")
        return
    wanted: dict[str, set[str]] = {}
    for tensor, shard in index.weight_map.items():
        wanted.setdefault(entry.folder + shard, set()).add(tensor)
    for shard, names in sorted(wanted.items()):
        if shard not in tree.entries:
            text = f"is missing: {name} places {len(names)} tensors in it"
            judgement.add(shard, "missing", text, "missing")
        elif shard in tensors and names != tensors[shard]:
            lost, more = names - tensors[shard], tensors[shard] - names
            what = f"lacks {min(lost)}" if lost else f"also holds {min(more)}"
            text = f"is mixed: it does not hold the tensors that {name} says: it {what}"
            judgement.add(shard, "mixed", text)
    total = (index.metadata or {}).get("total_size")
    sizes = [_payload(tree, shard) for shard in wanted if shard in tensors]
    if isinstance(total, int) and len(sizes) == len(wanted) and sum(sizes) != total:
        text = f"is mixed: it says {total} bytes of tensors, its shards hold {sum(sizes)}"
        judgement.add(name, "mixed", text)


def check_numbers(tree: Tree, folder: str, judgement: Judgement) -> None:
    """Check that `model-00002-of-00003.safetensors` has its sisters."""
    sets: dict[tuple[str, int, str], set[int]] = {}
    for entry in tree.files(folder):
        if match := _SHARD.fullmatch(entry.base):
            sets.setdefault((match[1], int(match[3]), match[4]), set()).add(int(match[2]))
    for (stem, count, suffix), numbers in sets.items():
        # One file claims a count of at most 99,999.
        for number in sorted(set(range(1, count + 1)) - numbers):
            name = f"{folder}{stem}{number:05d}-of-{count:05d}{suffix}"
            judgement.add(name, "missing", f"is missing: {len(numbers)} of {count} are", "missing")


def _header(raw: bytes) -> dict[str, Tensor]:
    if not raw.strip(b"\0"):
        raise Damage("zeros", "holds zeros where its header should be")
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        fields.pop("__metadata__", None)
        tensors = {
            name: msgspec.json.decode(field, type=Tensor, strict=True)
            for name, field in fields.items()
        }
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damage("changed", "is changed: its header is no table of tensors") from error
    return tensors


def _look_for_zeros(data: Window, last: Tensor) -> None:
    zeros = data.trailing_zeros()
    if zeros < 4096:
        return
    if zeros == data.size and zeros >= 65536:
        raise Damage("zeros", "holds nothing but zeros after its header")
    begin, end = last.data_offsets
    row = (end - begin) // max(1, math.prod(last.shape[:-1]))
    torn = zeros < end - begin and len(last.shape) > 1 and (end - begin - zeros) % max(row, 1) > 7
    if torn:
        text = f"ends in {zeros} zeros from the middle of a row on: its tail was never written"
        raise Damage("zeros", text)
    raise Damage("zeros", f"ends in {zeros} zeros: perhaps its tail was never written", "doubtful")


def _payload(tree: Tree, shard: str) -> int:
    entry = tree.entries[shard]
    with entry.path.open("rb") as file:
        return entry.size - 8 - int.from_bytes(file.read(8), "little")
