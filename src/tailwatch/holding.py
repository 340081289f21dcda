"""One process at a time in a directory, and who it is when it is not us.

Contract: a `Hold` is a flock on a small file that also says who has it (run, host, pid), so that a
second job on the same directory by mistake is refused by the name of the first. The hold ends with
the process, however it ends; the file stays behind and means nothing by itself. Children that are
forked share their parent's hold. On NFS the server keeps the lock, so other hosts are refused too;
on Lustre only where it is mounted with `flock`.

Cost: one file; a few system calls.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from tailwatch.errors import UsageError

_OURS: weakref.WeakValueDictionary[Path, Hold] = weakref.WeakValueDictionary()


class Held(UsageError):
    """Somebody else has it; the message names run, host and pid."""


class Hold:
    """A hold on a file; released by `release`, or when nobody refers to it any more.

    Args:
        fd: the open and locked file.
    """

    def __init__(self, fd: int) -> None:
        self._close = weakref.finalize(self, os.close, fd)

    def release(self) -> None:
        """Let go; doing it twice is harmless."""
        self._close()

    @property
    def released(self) -> bool:
        """Whether it was let go."""
        return not self._close.alive

    @classmethod
    def take(cls, path: Path, what: str, who: str, *, patience: float = 0.0) -> Hold:
        """Return the hold on `path`, also when this process has it already.

        Args:
            path: the file; made when it is not there.
            what: what it stands for, for the message: `run directory`.
            who: the run, as others are told.
            patience: seconds to wait for a predecessor that is about to end.

        Raises:
            Held: another process has it.
        """
        path = path.absolute()
        ours = _OURS.get(path)
        if ours is not None and not ours.released:
            return ours
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(fd, path, what, patience)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"run {who}, pid {os.getpid()} on {socket.gethostname()}".encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        hold = _OURS[path] = cls(fd)
        return hold


def _lock(fd: int, path: Path, what: str, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            holder = os.pread(fd, 4096, 0).decode(errors="replace") or "another process"
            raise Held(f"this {what} is in use by {holder}", source=path.parent) from None
        return


@contextlib.contextmanager
def hold(directory: Path, what: str) -> Iterator[None]:
    """Hold a directory for this process alone; raise `Held` when another one has it."""
    taken = Hold.take(directory / ".holder", what, directory.name)
    try:
        yield
    finally:
        taken.release()
