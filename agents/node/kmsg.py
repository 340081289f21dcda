r"""Reads `/dev/kmsg`: every record of the kernel log once, and counts those that were overwritten.

One read is one record: `priority,sequence,microseconds[,flags...];text`, then lines that begin with
a blank and hold `KEY=value`, bytes that cannot be printed as `\xNN`. A fresh descriptor stands at
the oldest record that is left.

Contract: EPIPE (the ring overran this reader) is counted and reading goes on. After any other error
the device is opened anew, and what was read before is passed over. A reader that was handed the
position of an earlier one goes on behind it. `read` returns at most `BATCH` records, so that a
flood costs bounded time; the rest stays in the kernel's ring.

Cost: one system call a record, about 3 us.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

BATCH = 10_000
# The kernel writes at most PRINTKRB_RECORD_MAX (8,192) bytes; a shorter buffer would be EINVAL.
_READ_BYTES = 16_384
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


class Position(NamedTuple):
    """Where a reader is: the sequence and time of the last record it has read."""

    sequence: int
    microseconds: int


class KernelRecord(NamedTuple):
    """One record; `facility` 0 is the kernel itself, all others wrote from user space."""

    facility: int
    level: int
    sequence: int
    microseconds: int
    text: str
    fields: dict[str, str]


def parse_record(data: bytes) -> KernelRecord | None:
    """Return the record in what one read returned; None when it has not the form of one."""
    head, separator, body = data.partition(b";")
    parts = head.split(b",")
    if not separator or len(parts) < 4 or not all(part.isdigit() for part in parts[:3]):
        return None
    priority, sequence, microseconds = (int(part[:20]) for part in parts[:3])
    text, *rest = body.rstrip(b"\n").split(b"\n")
    fields = {}
    for line in rest:
        name, equals, value = line.strip().partition(b"=")
        if equals:
            fields[_text(name)] = _text(value)
    return KernelRecord(priority >> 3, priority & 7, sequence, microseconds, _text(text), fields)


def _text(data: bytes) -> str:
    if b"\\x" in data:
        data = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), data)
    return data.decode("utf-8", "replace")


def open_kmsg(path: Path) -> int:
    """Return a descriptor that stands at the oldest record and never blocks."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class Kmsg:
    """The kernel log from one position on.

    Args:
        path: the device.
        after: the last record somebody has read already; None begins with the oldest there is.
        opener, reader: the system calls below.

    Attributes:
        position: the last record that was read.
        records: how many were read.
        lost: how many were overwritten before they could be read.
        malformed: how many had not the form of a record.
    """

    def __init__(
        self,
        path: Path,
        *,
        after: Position | None = None,
        opener: Callable[[Path], int] = open_kmsg,
        reader: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._path = path
        self._opener = opener
        self._reader = reader
        self._fd: int | None = None
        self._known = after
        self._overran = False
        self.position = after
        self.records = 0
        self.lost = 0
        self.malformed = 0

    def read(self) -> list[KernelRecord]:
        """Return what came since the last call, oldest first; raise OSError when it cannot."""
        if self._fd is None:
            self._fd = self._opener(self._path)
            self._known = self.position
        found: list[KernelRecord] = []
        for _ in range(BATCH):
            try:
                data = self._reader(self._fd, _READ_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self._overran = True
                    continue
                if error.errno == errno.EINVAL:
                    # A record longer than any kernel makes; it is passed over, and shows as a gap.
                    continue
                self.close()
                if found:
                    break
                raise
            if not data:
                self.close()
                if found:
                    break
                raise OSError(errno.EIO, "the kernel log ended", str(self._path))
            record = parse_record(data)
            if record is None:
                self.malformed += 1
            elif self._is_new(record):
                found.append(record)
        self.records += len(found)
        return found

    def _is_new(self, record: KernelRecord) -> bool:
        """Move on to a record; return False for one that was read before the device was opened."""
        here = Position(record.sequence, record.microseconds)
        if self._known is not None:
            if here <= self._known:
                return False
            self._known = None
        if self.position is not None:
            gap = record.sequence - self.position.sequence - 1
            self.lost += max(gap, int(self._overran))
        elif self._overran:
            self.lost += 1
        self._overran = False
        self.position = here
        return True

    def close(self) -> None:
        """Close the device; the next read opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
