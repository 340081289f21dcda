"""Files that are there whole or not at all, and lines that survive a kill.

Cost: one fsync of the file and one of its directory for `write_durably`, one for a durable
`append_line`.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: readers see the old or the new content, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def append_line(path: Path, line: bytes, *, durable: bool = False) -> None:
    """Append one line with a single write, so that several processes can share the file.

    Raises:
        OSError: it could not be written whole; what a full disk took of it is taken back.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        written = os.write(fd, line)
        if written < len(line):
            os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR) - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
