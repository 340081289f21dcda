"""Copying files of a checkpoint from one place to another, block by checked block.

Contract: what is not what the manifest says is not copied: the copy has the digests of the manifest
or there is an error. Each file is durable when `copy_files` returns; names become so with the
commit.

Cost: one read, one hash, one write and one fsync a file; one block of buffer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tailwatch.integrity.blocks import digest, read_at
from tailwatch.integrity.manifest import FileEntry, Manifest


class CopyError(Exception):
    """The source is not what its manifest says; the message names file and block."""


def copy_files(source: Path, target: Path, manifest: Manifest, names: Iterable[str]) -> int:
    """Copy files between two directories; return the bytes copied.

    Raises CopyError for damage of the source, OSError for what the disk does not take.
    """
    return sum(_copy(source / name, target / name, manifest.files[name]) for name in names)


def _copy(source: Path, target: Path, entry: FileEntry) -> int:
    buffer = bytearray(min(entry.block_bytes, entry.size))
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            size = 0
            for block, expected in enumerate(entry.digests):
                view = read_at(reading, size, buffer)
                if digest(view) != expected:
                    raise CopyError(f"{source.name}, block {block}: changed in {source.parent}")
                size += len(view)
                while view:
                    view = view[os.write(writing, view) :]
            os.fsync(writing)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return size
