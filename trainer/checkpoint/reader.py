"""The read side: no byte reaches a tensor, or the unpickler, before its block matched its digest.

Contract: `CheckedReader` is DCP's reader on files whose blocks are compared with the manifest as
they are read, from the same buffer. A checkpoint is verified as a whole before it is loaded; what
this adds is that nothing can change in between unnoticed, and that `.metadata` (a pickle) is only
unpickled when the manifest vouches for it.

Cost: reads whole blocks of 4 MiB and hashes them at about 30 GiB/s; two blocks of buffer per file.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from tailwatch.integrity import FileEntry, Manifest, digest
from tailwatch.integrity.blocks import read_at

_CACHED_BLOCKS = 2


class CheckedFile(io.RawIOBase):
    """A file opened for reading whose blocks are checked against its entry in the manifest."""

    def __init__(self, path: Path, entry: FileEntry) -> None:
        super().__init__()
        self._name = path.name
        self._entry = entry
        self._position = 0
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._entry.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        filled = 0
        while filled < len(view) and self._position < self._entry.size:
            number, offset = divmod(self._position, self._entry.block_bytes)
            part = self._block(number)[offset : offset + len(view) - filled]
            view[filled : filled + len(part)] = part
            filled += len(part)
            self._position += len(part)
        return filled

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()

    def _block(self, number: int) -> memoryview:
        block = self._blocks.get(number)
        if block is None:
            start = number * self._entry.block_bytes
            length = min(self._entry.block_bytes, self._entry.size - start)
            block = read_at(self._fd, start, bytearray(length))
            if digest(block) != self._entry.digests[number]:
                raise ValueError(
                    f"{self._name}, block {number}: changed after it had been verified"
                )
            if len(self._blocks) >= _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
            self._blocks[number] = block
        return block


class CheckedFileSystem(FileSystem):
    """DCP's file system restricted to reading what a manifest names."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    @contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        if mode != "rb":
            raise ValueError(f"opened for reading only, not {mode}")
        name = Path(path).name
        if name not in self._manifest.files:
            raise ValueError(f"{name} is not in the manifest")
        with CheckedFile(Path(path), self._manifest.files[name]) as file:
            yield file


class CheckedReader(FileSystemReader):
    """DCP's reader of one verified checkpoint."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        super().__init__(path)
        self.fs = CheckedFileSystem(manifest)

    # Without `kwargs`: with it DCP would retry on errors with a file per rank that is never there,
    # and hide the error.
    def read_metadata(self) -> Metadata:
        return super().read_metadata()
