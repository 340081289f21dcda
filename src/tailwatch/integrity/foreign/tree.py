"""Looking at directories and files that anybody may have written, without being led astray.

Contract: nothing is followed twice, nothing that is not a regular file is opened (a FIFO would
block), and no read is larger than `READ_BYTES`, whatever the file claims. An entry that cannot be
used as a file says so in `kind`.

Cost: one `stat` an entry.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

import msgspec

from tailwatch.integrity.foreign.findings import Damage

READ_BYTES = 256 * 1024 * 1024
CHUNK_BYTES = 4 * 1024 * 1024
DEPTH = 5
ENTRIES = 200_000

_ZEROS = bytes(CHUNK_BYTES)

Kind = Literal["file", "directory", "dangling", "loop", "special", "unreadable"]


class Entry(msgspec.Struct, kw_only=True, frozen=True):
    """One name below a directory; `name` is relative to it, `size` in bytes, `mtime` in seconds."""

    name: str
    path: Path
    kind: Kind
    size: int = 0
    mtime: float = 0.0

    @property
    def base(self) -> str:
        """The last part of the name."""
        return self.name.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """What comes before the last part, with its slash; empty at the top."""
        return self.name[: len(self.name) - len(self.base)]


def entry_of(path: Path, name: str) -> Entry:
    """Return what lies at a path, links followed."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return Entry(name=name, path=path, kind="dangling")
    except OSError as error:
        kind: Kind = "loop" if error.errno == errno.ELOOP else "unreadable"
        return Entry(name=name, path=path, kind=kind)
    if stat.S_ISDIR(found.st_mode):
        return Entry(name=name, path=path, kind="directory", mtime=found.st_mtime)
    kind = "file" if stat.S_ISREG(found.st_mode) else "special"
    return Entry(name=name, path=path, kind=kind, size=found.st_size, mtime=found.st_mtime)


def children(directory: Path) -> list[Entry]:
    """Return the entries of one directory by name; OSError when it cannot be listed."""
    return [entry_of(directory / name, name) for name in sorted(os.listdir(directory))]


class Tree(msgspec.Struct, kw_only=True):
    """A directory and all below it, down to `DEPTH` levels and `ENTRIES` names."""

    root: Path
    entries: dict[str, Entry]
    whole: bool

    @classmethod
    def scan(cls, root: Path) -> Self:
        """Return what lies below a directory."""
        entries: dict[str, Entry] = {}
        whole = True
        waiting = [(root, "", frozenset({os.path.realpath(root)}))]
        while waiting:
            directory, prefix, above = waiting.pop()
            try:
                found = children(directory)
            except OSError:
                name = prefix.rstrip("/") or "."
                entries[name] = Entry(name=name, path=directory, kind="unreadable")
                continue
            for entry in found:
                name = prefix + entry.name
                if len(entries) >= ENTRIES:
                    return cls(root=root, entries=entries, whole=False)
                entries[name] = msgspec.structs.replace(entry, name=name)
                if entry.kind == "directory":
                    real = os.path.realpath(entry.path)
                    if real in above:
                        entries[name] = msgspec.structs.replace(entries[name], kind="loop")
                    elif name.count("/") + 1 >= DEPTH:
                        whole = False
                    else:
                        waiting.append((entry.path, name + "/", above | {real}))
        return cls(root=root, entries=dict(sorted(entries.items())), whole=whole)

    def files(self, folder: str | None = None) -> list[Entry]:
        """Return the files: all, or those right in one folder (with its slash, "" for the top)."""
        return [
            entry
            for entry in self.entries.values()
            if entry.kind == "file" and (folder is None or entry.folder == folder)
        ]

    def folders(self) -> list[str]:
        """Return "" and every folder below with its slash."""
        below = [e.name + "/" for e in self.entries.values() if e.kind == "directory"]
        return ["", *below]

    def file(self, name: str) -> Entry | None:
        """Return the file of that name, when it is one."""
        entry = self.entries.get(name)
        return entry if entry is not None and entry.kind == "file" else None


class Window(msgspec.Struct, kw_only=True, frozen=True):
    """`size` bytes of an open file from `start`; offsets are counted from there."""

    fd: int
    start: int
    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes, fewer where the window ends; Damage when a claim asks for too many."""
        length = max(0, min(length, self.size - offset))
        if length > READ_BYTES:
            text = f"is too large to be looked at: one part of it claims {length} bytes"
            raise Damage("too large", text, "doubtful")
        return b"".join(bytes(chunk) for chunk in self.chunks(offset, length))

    def chunks(self, offset: int, length: int) -> Iterator[bytes]:
        """Yield bytes in pieces of at most `CHUNK_BYTES`; stops where the file does."""
        end = min(offset + length, self.size)
        while offset < end:
            data = os.pread(self.fd, min(CHUNK_BYTES, end - offset), self.start + offset)
            if not data:
                return
            yield data
            offset += len(data)

    def within(self, offset: int, size: int) -> Window:
        """Return a part of this window."""
        return Window(fd=self.fd, start=self.start + offset, size=min(size, self.size - offset))

    def trailing_zeros(self) -> int:
        """Return how many bytes at the end are zero; reads no more than those and one chunk."""
        count = 0
        while count < self.size:
            length = min(CHUNK_BYTES, self.size - count)
            data = os.pread(self.fd, length, self.start + self.size - count - length)
            if not data or data != _ZEROS[: len(data)]:
                return count + len(data) - len(data.rstrip(b"\0"))
            count += len(data)
        return count


class Opened:
    """`with Opened(path) as window`: a regular file, all of it; OSError as from `open`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Window:
        # A FIFO that took the file's place since the listing must not block.
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._fd)
            raise OSError(errno.EINVAL, "not a regular file", str(self._path))
        return Window(fd=self._fd, start=0, size=found.st_size)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
