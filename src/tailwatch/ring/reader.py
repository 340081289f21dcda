"""The node agent's end of a ring: pread only, and no trust in what the file says.

Contract: every record is returned once, in order, or counted in `lost`. A slot that is damaged or
being written is passed over only when a newer whole record proves that its own can never come.
A file that is cut while it is read reads as "nothing new".

Cost: one pread of the header area at open; then one pread of 8 slots when nothing is new, and one
per 64 slots while there is more; a scan of the whole ring only when slots were overwritten or
damaged, and then for at most a twentieth of the time. `last_mark` is about 18 preads of 8 bytes.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
from pathlib import Path
from typing import Any

import msgspec

from tailwatch.ring.layout import (
    END,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MARK,
    PAYLOAD_BYTES,
    RECORD_BYTES,
    RECORD_HEADER,
    VERSION,
    Mark,
    MarkCode,
    record_checksum,
)

_FIRST_BATCH = 8
_BATCH = 64
_MAX_MARK_SLOTS = 1 << 20
_MAX_RECORD_SLOTS = 1 << 16
_CHEAP_SCAN_SECONDS = 0.005
_SCAN_PAUSE = 20
_FLOCK = struct.Struct("@hhqqi4x")
_MARK_SEQUENCE_AT = MARK.size - 8


class TornRing(Exception):
    """The file is no ring of a version this reader knows."""


class RingReader:
    """Reads one ring from the oldest record that is still there, each record once.

    Args:
        path: the ring file.
        sequence: the last record that is known already; reading goes on behind it.

    Attributes:
        lost: records overwritten or damaged before they could be read.
        sequence: the sequence of the last record returned or lost.
    """

    def __init__(self, path: Path, *, sequence: int = 0) -> None:
        self.path = path
        self.sequence = sequence
        self.lost = 0
        self._scan_not_before = 0.0
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise TornRing(f"{path}: no regular file")
        self._fd = os.open(path, flags)
        try:
            self._read_header()
        except BaseException:
            os.close(self._fd)
            raise

    def _read_header(self) -> None:
        head = os.pread(self._fd, HEADER_BYTES, 0)
        if len(head) < HEADER_BYTES or head[:8] != MAGIC:
            raise TornRing(f"{self.path}: no ring header")
        fields = HEADER.unpack_from(head)
        version, self.mark_slots, self.record_slots, size = fields[1], *fields[3:6]
        self.rank, self.world_size, self.attempt, self.pid = fields[6:10]
        if version != VERSION or size != RECORD_BYTES:
            raise TornRing(f"{self.path}: ring version {version}, expected {VERSION}")
        if not (
            0 < self.mark_slots <= _MAX_MARK_SLOTS and 0 < self.record_slots <= _MAX_RECORD_SLOTS
        ):
            raise TornRing(f"{self.path}: impossible number of slots")
        length = int.from_bytes(head[HEADER.size : HEADER.size + 2], "little")
        try:
            identity: Any = msgspec.msgpack.decode(
                head[HEADER.size + 2 : HEADER.size + 2 + length], type=dict[str, str]
            )
            self.run, self.node = identity["run"], identity["node"]
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            raise TornRing(f"{self.path}: unreadable identity") from error
        self._records_at = HEADER_BYTES + self.mark_slots * MARK.size

    def read_records(self) -> list[bytes]:
        """Return the payloads appended since the last call, oldest first."""
        return [payload for _, payload in self.read_numbered()]

    def alive(self) -> bool:
        """Whether the process that made the ring still runs (and not within this process)."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            answer = fcntl.fcntl(self._fd, fcntl.F_GETLK, asked)
        except OSError:
            return False
        kind: int = _FLOCK.unpack(answer)[0]
        return kind != fcntl.F_UNLCK

    def read_numbered(self, at_most: int = _MAX_RECORD_SLOTS) -> list[tuple[int, bytes]]:
        """Return `(sequence, payload)` of the records appended since the last call.

        At most one ring full, so that a writer faster than the reader cannot hold it here, and no
        further batch once there are `at_most`.
        """
        found: list[tuple[int, bytes]] = []
        size = _FIRST_BATCH
        while len(found) < min(self.record_slots, at_most):
            before = len(found)
            if self._read_batch(size, found):
                started = time.monotonic()
                if started < self._scan_not_before:
                    return found
                # The second look is needed: in the first, slots were read before the writer came
                # to them and later ones after. All that lies below its result is written by now.
                oldest = self._oldest_unread() and self._oldest_unread()
                spent = time.monotonic() - started
                if spent > _CHEAP_SCAN_SECONDS:
                    # A ring that is all holes must not cost the other ones their turn.
                    self._scan_not_before = started + spent * (1 + _SCAN_PAUSE)
                if oldest is None:
                    return found
                self.lost += oldest - self.sequence - 1
                self.sequence = oldest - 1
            elif len(found) == before:
                return found
            size = _BATCH
        return found

    def _read_slots(self, index: int, count: int) -> bytes:
        at = self._records_at + index * RECORD_BYTES
        data = os.pread(self._fd, count * RECORD_BYTES, at)
        return data[: len(data) // RECORD_BYTES * RECORD_BYTES]

    def _read_batch(self, size: int, found: list[tuple[int, bytes]]) -> bool:
        """Append what follows `self.sequence` to `found`; return whether a hole stopped it.

        A hole is a slot that holds neither the next record nor the one of the round before, or a
        slot of the round before with newer ones behind it.
        """
        index = self.sequence % self.record_slots
        count = min(size, self.record_slots - index)
        data = self._read_slots(index, count)
        for offset in range(0, len(data), RECORD_BYTES):
            sequence, payload = _slot(data, offset)
            expected = self.sequence + 1
            if sequence == expected and payload is not None:
                found.append((sequence, payload))
                self.sequence = sequence
            elif sequence != max(expected - self.record_slots, 0):
                return True
            else:
                behind = data[offset + RECORD_BYTES :] or self._read_slots(0, 1)
                return any(
                    _sequence(behind, at) == expected + 1 + at // RECORD_BYTES
                    for at in range(0, len(behind), RECORD_BYTES)
                )
        return False

    def _oldest_unread(self) -> int | None:
        """Return the oldest whole record behind `self.sequence` that is in the file."""
        oldest: int | None = None
        for start in range(0, self.record_slots, _BATCH):
            data = self._read_slots(start, min(_BATCH, self.record_slots - start))
            for offset in range(0, len(data), RECORD_BYTES):
                number, payload = _slot(data, offset)
                slot = start + offset // RECORD_BYTES
                if payload is None or number <= self.sequence:
                    continue
                if (number - 1) % self.record_slots == slot:
                    oldest = number if oldest is None else min(oldest, number)
        return oldest

    def _mark_sequence(self, slot: int) -> int:
        data = os.pread(self._fd, 8, HEADER_BYTES + slot * MARK.size + _MARK_SEQUENCE_AT)
        return int.from_bytes(data, "little")

    def last_mark(self) -> Mark | None:
        """Return the newest mark: what the rank is doing, and since when."""
        first = self._mark_sequence(0)
        if first == 0:
            return None
        # Slots 0..k hold one round, the rest the round before: find k by halving.
        low, high = 0, self.mark_slots - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._mark_sequence(middle) >= first + middle:
                low = middle
            else:
                high = middle - 1
        data = os.pread(self._fd, MARK.size, HEADER_BYTES + low * MARK.size)
        if len(data) < MARK.size:
            return None
        mono_ns, step, code, argument, sequence = MARK.unpack(data)
        try:
            named = MarkCode(code & ~END)
        except ValueError:
            return None
        return Mark(sequence, mono_ns, step, named, argument, bool(code & END))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _sequence(data: bytes, offset: int) -> int:
    sequence: int = RECORD_HEADER.unpack_from(data, offset)[2]
    return sequence


def _slot(data: bytes, offset: int) -> tuple[int, bytes | None]:
    """Return the sequence a slot claims and its payload, None when the slot is not whole."""
    length, crc, sequence = RECORD_HEADER.unpack_from(data, offset)
    if length > PAYLOAD_BYTES or sequence == 0:
        return sequence, None
    start = offset + RECORD_HEADER.size
    payload = data[start : start + length]
    return sequence, payload if record_checksum(payload, sequence) == crc else None
