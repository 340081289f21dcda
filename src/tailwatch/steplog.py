"""The node-local step log: records in the order in which the node agent took them from the rings.

Contract: a file of frames `<u32 length><u32 crc32 of payload><payload>`, little endian, payload a
msgpack record (`tailwatch.records`). Appends are single writes; a frame cut by a kill or a power
cut at the end of the file is not a record and is overwritten by the next append. A cursor is the
offset of a frame.
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
    """Yield `(offset of the next frame, payload)` for each whole frame of `data` from `offset`.

    Stops at the first frame that is cut or damaged.
    """
    view = memoryview(data)
    while offset + _HEADER.size <= len(view):
        length, crc = _HEADER.unpack_from(view, offset)
        start = offset + _HEADER.size
        payload = view[start : start + length]
        if len(payload) != length or zlib.crc32(payload) != crc:
            return
        offset = start + length
        yield offset, payload


def read_steplog(path: Path) -> list[Record]:
    """Return all whole records of a step log; a file that does not exist holds none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [decode(payload) for _, payload in payloads(data)]


class StepLog:
    """The writer of one step log; one at a time.

    `end` is the cursor behind the last whole record. Opening cuts a torn tail off; it raises
    UsageError when the file cannot be opened or belongs to another living writer.
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
        self.end = 0
        for self.end, _ in payloads(path.read_bytes()):
            pass
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

        Empty when `cursor` is `end`. Raises ValueError when no frame starts at `cursor`.
        """
        end = self.end
        if not 0 <= cursor <= end:
            raise ValueError(f"cursor {cursor} is not between 0 and {end}")
        size = max(min(limit, end - cursor), min(_FRAME_BYTES, end - cursor))
        data = os.pread(self._fd, size, cursor)
        last = 0
        for offset, _ in payloads(data):
            if last and offset > limit:
                break
            last = offset
        if not last and cursor < end:
            raise ValueError(f"no record starts at cursor {cursor}")
        return data[:last]

    def close(self) -> None:
        """Close the file; what was appended stays."""
        os.close(self._fd)
