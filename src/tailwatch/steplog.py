"""The node-local step log: records in the order in which the node agent took them from the rings.

Contract: a file of frames `<u32 length><u32 crc32 of payload><payload>`, little endian, payload a
msgpack record (`tailwatch.records`). Appends are single writes; a frame cut by a kill or a power
cut at the end of the file is not a record and is overwritten by the next append. Damage before
that costs the records it hit and none behind it: readers go on at the next whole frame, and
`damage` tells where they had to. A cursor is the offset of a frame.

Cost: about 1 us a frame; about 0.2 us for each damaged byte that is searched.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from tailwatch.errors import UsageError
from tailwatch.records import MAX_RECORD_BYTES, Record, decode

_HEADER = struct.Struct("<II")
_FRAME_BYTES = _HEADER.size + MAX_RECORD_BYTES


def frame(payload: bytes) -> bytes:
    """Return the frame of one encoded record."""
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def payloads(data: bytes | memoryview, offset: int = 0) -> Iterator[tuple[int, memoryview]]:
    """Yield `(offset behind the frame, payload)` for each whole frame of `data` from `offset`.

    What is cut or damaged is passed over, up to the next whole frame.
    """
    view = memoryview(data)
    while offset + _HEADER.size <= len(view):
        end = _frame_end(view, offset)
        if end is None:
            offset += 1
            continue
        yield end, view[offset + _HEADER.size : end]
        offset = end


def _frame_end(view: memoryview, offset: int) -> int | None:
    """Return where the whole frame that begins at `offset` ends; None when none begins there."""
    if offset + _HEADER.size > len(view):
        return None
    length, crc = _HEADER.unpack_from(view, offset)
    start = offset + _HEADER.size
    # Without the lower bound a run of zeros, as a power cut leaves it, would be whole frames.
    if not 0 < length <= MAX_RECORD_BYTES or start + length > len(view):
        return None
    return start + length if zlib.crc32(view[start : start + length]) == crc else None


def damage(data: bytes | memoryview) -> list[tuple[int, int]]:
    """Return the parts `(from, to)` of a step log that are neither whole frames nor its torn tail.

    The torn tail is the beginning of one frame at the end of `data`: what a kill leaves behind.
    """
    view = memoryview(data)
    found = []
    last = 0
    for end, payload in payloads(view):
        start = end - len(payload) - _HEADER.size
        if start > last:
            found.append((last, start))
        last = end
    if last < len(view) and not _is_cut(view, last):
        found.append((last, len(view)))
    return found


def _is_cut(view: memoryview, offset: int) -> bool:
    if offset + _HEADER.size > len(view):
        return True
    length: int = _HEADER.unpack_from(view, offset)[0]
    return 0 < length <= MAX_RECORD_BYTES and offset + _HEADER.size + length > len(view)


def read_steplog(path: Path) -> list[Record]:
    """Return all whole records of a step log; a file that does not exist holds none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [decode(payload) for _, payload in payloads(data)]


class StepLog:
    """The writer of one step log; one at a time.

    `end` is the cursor behind the last whole record, `damaged` the parts before it that hold none.
    Opening cuts off what lies behind `end`; it raises UsageError when the file cannot be opened or
    belongs to another living writer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"cannot be written: {error.strerror}", source=path) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise UsageError("another process writes this step log", source=path) from error
        data = path.read_bytes()
        self.end = 0
        for self.end, _ in payloads(data):
            pass
        self.damaged = dict(damage(memoryview(data)[: self.end]))
        os.ftruncate(self._fd, self.end)

    def append(self, batch: list[bytes]) -> None:
        """Append encoded records with one write; none of them counts when it raises OSError."""
        data = b"".join(frame(payload) for payload in batch)
        written = os.pwrite(self._fd, data, self.end)
        if written != len(data):
            raise OSError(f"{self.path}: wrote {written} of {len(data)} bytes")
        self.end += written

    def read(self, cursor: int, limit: int) -> bytes:
        """Return whole frames from `cursor` on: at most `limit` bytes of them, but at least one.

        Empty when `cursor` is `end` or damage begins there; see `next_frame`. Raises ValueError
        when `cursor` is none of these and no frame starts there.
        """
        end = self.end
        if not 0 <= cursor <= end:
            raise ValueError(f"cursor {cursor} is not between 0 and {end}")
        if cursor in self.damaged:
            return b""
        size = max(min(limit, end - cursor), min(_FRAME_BYTES, end - cursor))
        data = os.pread(self._fd, size, cursor)
        view = memoryview(data)
        last = 0
        while (offset := _frame_end(view, last)) and not (last and offset > limit):
            last = offset
        if not last and cursor < end:
            raise ValueError(f"no record starts at cursor {cursor}")
        return data[:last]

    def next_frame(self, cursor: int) -> int:
        """Return where to read on: at `cursor` itself, or behind damage that begins there."""
        return self.damaged.get(cursor, cursor)

    def close(self) -> None:
        """Close the file; what was appended stays."""
        os.close(self._fd)
