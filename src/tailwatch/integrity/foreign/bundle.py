"""`.nemo` bundles: a tar of configuration and weights.

Contract: every member's header has a checksum of its own (`tarfile` compares it) and every member
must lie inside the file; weights inside are judged as any file of their kind. A packed bundle
(`tar.gz`) has a CRC-32 over all of it, which is compared.

Cost: one pass over the weights, or over a packed bundle.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from typing import Any

from tailwatch.integrity.foreign import safetensors, torch_save
from tailwatch.integrity.foreign.findings import Damage, Judgement
from tailwatch.integrity.foreign.tree import Window

_RATIO = 1000


class _Stream(io.RawIOBase):
    """A window as the seekable file that `tarfile` wants; no read is larger than the window's."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._window.size}
        self._place = base[whence] + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        wanted = self._window.size if size < 0 else size
        data = self._window.read(self._place, wanted)
        self._place += len(data)
        return data


def read(window: Window, name: str, judgement: Judgement) -> Any:
    """Check a bundle; return the names in it; raise Damage for the first thing that is wrong."""
    if window.read(0, 2) == b"\x1f\x8b":
        _unpack(window)
        return None
    names = set()
    end = 0
    try:
        with tarfile.open(fileobj=_Stream(window), mode="r:") as tar:
            for member in tar:
                names.add(member.name.removeprefix("./"))
                end = max(end, member.offset_data + -(-member.size // 512) * 512)
                if member.isreg():
                    _member(window, member, name, judgement)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        if window.trailing_zeros() == window.size:
            raise Damage("zeros", "holds nothing but zeros") from error
        word = "changed" if names or window.size >= 512 else "truncated"
        raise Damage(word, f"is {word}: the list of its members cannot be read") from error
    # Two blocks of zeros end a tar; whoever was killed while writing has not written them.
    if window.size < end + 1024 or window.read(end, 1024).strip(b"\0"):
        raise Damage("truncated", "is truncated: the end of the tar is missing")
    if not any("weights" in found or found.endswith(".ckpt") for found in names):
        raise Damage("missing", "has no weights in it: model_weights.ckpt is missing", "missing")
    return names


def _member(window: Window, member: tarfile.TarInfo, name: str, judgement: Judgement) -> None:
    if member.offset_data + member.size > window.size:
        raise Damage("truncated", f"is truncated: its member {member.name} goes beyond its end")
    part = window.within(member.offset_data, member.size)
    base = member.name.lower()
    try:
        if base.endswith((".ckpt", ".pt", ".pth")):
            if not torch_save.read(part).checked:
                judgement.unchecked.add(name)
            return
        if base.endswith(".safetensors"):
            safetensors.read(part)
    except Damage as damage:
        text = f"{damage.text} (its member {member.name})"
        raise Damage(damage.fault, text, damage.effect) from damage
    judgement.unchecked.add(name)


def _unpack(window: Window) -> None:
    unpacker = zlib.decompressobj(31)
    unpacked = 0
    try:
        for chunk in window.chunks(0, window.size):
            piece = unpacker.decompress(chunk, 1 << 22)
            while piece:
                unpacked += len(piece)
                if unpacked > _RATIO * (window.size + 1024):
                    raise Damage("too large", "unpacks without end: not looked at", "doubtful")
                piece = unpacker.decompress(unpacker.unconsumed_tail, 1 << 22)
    except zlib.error as error:
        raise Damage("changed", "is changed: it does not match its CRC-32") from error
    if not unpacker.eof:
        raise Damage("truncated", "is truncated: the end of the packed tar is missing")
