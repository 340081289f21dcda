"""A kernel log to read from: a pipe that keeps records apart, as `/dev/kmsg` does."""

from __future__ import annotations

import errno
import os
from collections import deque
from pathlib import Path


class FakeKmsg:
    """A character stream that gives one record a read, and can overrun, fail or end.

    `opener` and `reader` are the two system calls that `Kmsg` makes. Every opening begins with the
    oldest record that is still in the ring, as the device does.
    """

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.ring: list[bytes] = []
        self.sequence = 0
        self.opened = 0
        self._capacity = capacity
        self._pipes: dict[int, int] = {}
        self._waiting: dict[int, deque[bytes]] = {}
        self._errors: list[int] = []

    def log(
        self, text: str, *, priority: int = 3, microseconds: int | None = None, sequence: int = -1
    ) -> None:
        """Let the kernel write a record."""
        number = self.sequence if sequence < 0 else sequence
        self.sequence = number + 1
        at = number * 1000 if microseconds is None else microseconds
        self.write(f"{priority},{number},{at},-;{text}\n".encode())

    def write(self, record: bytes) -> None:
        """Put a record as it is into the ring and to everyone who reads."""
        self.ring = [*self.ring, record][-self._capacity :]
        for waiting in self._waiting.values():
            waiting.append(record)

    def overrun(self, records: int) -> None:
        """Overwrite this many records before anyone could read them."""
        self.sequence += records
        self._errors.append(errno.EPIPE)

    def fail(self, number: int) -> None:
        """Let the next read fail with an errno."""
        self._errors.append(number)

    def opener(self, path: Path) -> int:
        """Return a descriptor at the oldest record."""
        # A pipe in packet mode: one read returns what one write wrote.
        reading, writing = os.pipe2(os.O_DIRECT | os.O_NONBLOCK | os.O_CLOEXEC)
        self._pipes[reading] = writing
        self._waiting[reading] = deque(self.ring)
        self.opened += 1
        return reading

    def reader(self, fd: int, size: int) -> bytes:
        """Read one record."""
        if self._errors:
            raise OSError(self._errors.pop(0), "as told")
        if self._waiting.get(fd):
            # Handed over one by one: a pipe holds far fewer records than the kernel's ring.
            os.write(self._pipes[fd], self._waiting[fd].popleft())
        return os.read(fd, size)

    def end(self) -> None:
        """End the stream for all who read it now."""
        for writing in self._pipes.values():
            os.close(writing)
        self._pipes.clear()
        self._waiting.clear()
