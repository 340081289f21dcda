"""Follows a log that a daemon of this host writes: each line once, also across its rotation.

Contract: a file that is renamed away is read to its end before the new one is begun; one that was
cut is begun anew. Without a known position the reader begins at the end of what is there, and at
the beginning of what comes later. A line is handed out when it is whole; one longer than
`LONGEST_LINE` is cut. `read` returns at most `MOST_BYTES` of text, so a flood costs bounded time.

Cost: one read and one stat a call when nothing is new.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 1 << 20
LONGEST_LINE = 1 << 16


class FilePosition(NamedTuple):
    """Where a reader is: the file by its inode, and the end of the last whole line."""

    inode: int
    offset: int


class LogTail:
    """The lines of a log from one position on.

    Args:
        path: the log.
        after: where an earlier reader was; None for the first one.
    """

    def __init__(self, path: Path, after: FilePosition | None = None) -> None:
        self._path = path
        self._after = after
        self._from_beginning = after is not None
        self._fd: int | None = None
        self._inode = 0
        self._offset = 0
        self._rest = b""

    @property
    def position(self) -> FilePosition | None:
        """Where this reader is; None before it could read."""
        if self._inode == 0:
            return None
        return FilePosition(self._inode, self._offset - len(self._rest))

    def read(self) -> list[str]:
        """Return the lines since the last call; raise OSError while the log cannot be read."""
        if self._fd is None:
            self._open()
        data = self._take()
        if not data and self._was_replaced():
            self.close()
            self._from_beginning = True
            self._open()
            data = self._take()
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LONGEST_LINE:]
        return [line[:LONGEST_LINE].decode("utf-8", "replace") for line in lines]

    def _open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            # What is not there now has nothing of the past in it when it comes.
            self._from_beginning = True
            raise
        found = os.fstat(self._fd)
        self._inode, self._rest = found.st_ino, b""
        self._offset = 0 if self._from_beginning else found.st_size
        after, self._after = self._after, None
        if after is not None and after.inode == found.st_ino and after.offset <= found.st_size:
            self._offset = after.offset

    def _take(self) -> bytes:
        assert self._fd is not None
        data = os.pread(self._fd, MOST_BYTES, self._offset)
        if not data and os.fstat(self._fd).st_size < self._offset:
            self._offset, self._rest = 0, b""
            data = os.pread(self._fd, MOST_BYTES, 0)
        self._offset += len(data)
        return data

    def _was_replaced(self) -> bool:
        # While it is renamed and not made anew, the old one may still be written to.
        try:
            return os.stat(self._path).st_ino != self._inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the log; the next read goes on where this one was."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._after = self.position
            self._from_beginning = True
