"""A tensor that `torch.save` wrote, read straight from where its bytes lie.

Contract: `torch.save` keeps each storage as it is, uncompressed, as one member of a zip. So the
part of a tensor that is asked for can be copied from the file into its target, without a copy of
the whole in between; only what does not lie in order goes through one. The result is that of
`torch.load` and `copy_`.

Cost: about 0.1 ms a tensor, then memory speed.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tailwatch.trainer.checkpoint.pickles import TensorHead, load_tensor_head

_LOCAL_HEADER = 30  # bytes of a zip member's local header, before its name and extra field


class Source(Protocol):
    """An open file: seekable, and able to copy a range of itself."""

    def seek(self, offset: int, whence: int = 0, /) -> int: ...

    def readinto(self, target: memoryview, /) -> int: ...


class _Window(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, source: Source, start: int, length: int) -> None:
        super().__init__()
        self._source, self._start, self._length, self._position = source, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max((0, self._position, self._length)[whence] + offset, 0)
        return self._position

    def readinto(self, target: object) -> int:
        view = memoryview(target).cast("B")[: max(self._length - self._position, 0)]  # type: ignore[arg-type]
        self._source.seek(self._start + self._position)
        count = self._source.readinto(view)
        self._position += count
        return count


class SavedTensor:
    """One tensor in an open file, at `start` and `length` bytes long."""

    def __init__(self, source: Source, start: int, length: int) -> None:
        self._source, self._start = source, start
        window = _Window(source, start, length)
        with zipfile.ZipFile(window) as archive:
            members = {i.filename.partition("/")[2]: i for i in archive.infolist()}
        if any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
            raise ValueError("a compressed tensor, expected one as torch.save writes it")
        if "byteorder" in members and self._read(members["byteorder"]) != b"little":
            raise ValueError("a big-endian tensor")
        self.head: TensorHead = load_tensor_head(self._read(members["data.pkl"]))
        storage = members[f"data/{self.head.key}"]
        self._bytes_at, self._bytes = self._place(storage), storage.file_size

    def copy_to(self, target: Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy the part at `offsets` of shape `lengths` into `target`, which has that shape."""
        if list(target.shape) != list(lengths):
            raise ValueError(f"a part of shape {list(lengths)} for one of {list(target.shape)}")
        head = self.head
        # A part of the outermost dimension, or the whole, lies in one piece.
        in_order = head.contiguous and list(lengths[1:]) == list(head.size[1:])
        plain = target.device.type == "cpu" and target.dtype == head.dtype
        if in_order and plain and target.is_contiguous():
            row = math.prod(head.size[1:])
            first = head.offset + (offsets[0] * row if len(offsets) else 0)
            self._read_storage(first * head.dtype.itemsize, _bytes_of(target))
            return
        whole = torch.empty(self._bytes, dtype=torch.uint8)
        self._read_storage(0, _bytes_of(whole))
        part = whole.view(head.dtype).as_strided(head.size, head.stride, head.offset)
        for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
            part = part.narrow(dimension, offset, length)
        target.copy_(part)

    def _read_storage(self, offset: int, target: memoryview) -> None:
        if offset + len(target) > self._bytes:
            raise ValueError("a tensor that is longer than its storage")
        self._source.seek(self._bytes_at + offset)
        self._fill(target)

    def _read(self, info: zipfile.ZipInfo) -> bytes:
        # Not by `zipfile`: the CRC it compares is one that was not computed.
        data = bytearray(info.file_size)
        self._source.seek(self._place(info))
        self._fill(memoryview(data))
        return bytes(data)

    def _place(self, info: zipfile.ZipInfo) -> int:
        """Return where a member's bytes begin in the file."""
        header = bytearray(_LOCAL_HEADER)
        self._source.seek(self._start + info.header_offset)
        self._fill(memoryview(header))
        name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        return self._start + info.header_offset + _LOCAL_HEADER + name + extra

    def _fill(self, target: memoryview) -> None:
        if target and self._source.readinto(target) != len(target):
            raise EOFError("the file ends inside a tensor")


def _bytes_of(tensor: Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(bytearray())
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data
