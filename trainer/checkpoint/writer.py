"""The write side: torch DCP's own files, with digests taken from the bytes on their way out.

Contract: built on public classes of `torch.distributed.checkpoint` only, and stock `dcp.load`
reads the result. Each file is fsynced before its rank reports it; the digests travel to rank 0 in
DCP's own gather, so integrity costs no collective. `finish` counts the results against the plan
(DCP itself does not notice a lost one) and then hands the manifest's contents to `seal`.

Cost: xxh3_128 at about 30 GiB/s and one fsync per file; at most 256 KiB are buffered.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import xxhash
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from tailwatch.integrity import BLOCK_BYTES, FileEntry

# Smaller writes (the parts of a zip around a tensor) are put together to one of this size.
_GATHER_BYTES = 256 * 1024


class HashingFile(io.RawIOBase):
    """A file that is written front to back and knows the digests of its blocks.

    What is large goes to the disk from where it lies, what is small is gathered first. `close`
    makes it durable; a file left in an error is closed by `abandon` and never counts.
    """

    def __init__(self, path: Path, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._block_bytes = block_bytes
        self._gathered = bytearray()
        self._size = 0
        self._hash = xxhash.xxh3_128()
        self._digests: list[str] = []
        self._open = True
        self.error: OSError | None = None

    @property
    def entry(self) -> FileEntry:
        """Size and digests of what was written, once the file is closed."""
        return FileEntry(size=self._size, block_bytes=self._block_bytes, digests=self._digests)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size + len(self._gathered)

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        view = memoryview(data).cast("B")
        if len(view) + len(self._gathered) <= _GATHER_BYTES:
            self._gathered += view
        else:
            self._put_gathered()
            self._put(view)
        return len(view)

    def flush(self) -> None:
        # DCP flushes after every tensor; small ones are gathered over several of them.
        pass

    def close(self) -> None:
        if not self._open:
            return
        self._put_gathered()
        if self._size % self._block_bytes:
            self._digests.append(self._hash.hexdigest())
        try:
            os.fsync(self._fd)
        except OSError as error:
            self.error = error
            raise
        self.abandon()

    def abandon(self) -> None:
        """Give the file up without making it durable."""
        if self._open:
            self._open = False
            os.close(self._fd)
        super().close()

    def _put_gathered(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._put(memoryview(gathered))

    def _put(self, view: memoryview) -> None:
        while view:
            left = self._block_bytes - self._size % self._block_bytes
            part, view = view[:left], view[left:]
            self._hash.update(part)
            self._write(part)
            self._size += len(part)
            if self._size % self._block_bytes == 0:
                self._digests.append(self._hash.hexdigest())
                self._hash.reset()

    def _write(self, part: memoryview) -> None:
        done = 0
        try:
            while done < len(part):
                done += os.write(self._fd, part[done:])
        except OSError as error:
            self.error = error
            raise


class HashingFileSystem(FileSystem):
    """DCP's file system whose written files are `HashingFile`s; keeps their entries by name."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self.entries: dict[str, FileEntry] = {}

    @contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        if mode != "wb":
            raise ValueError(f"opened for writing only, not {mode}")
        file = HashingFile(Path(path), self._block_bytes)
        try:
            yield file
            file.close()
        except BaseException as error:
            file.abandon()
            # torch turns a full disk into "unexpected pos"; the first error says what happened.
            if file.error is not None and file.error is not error:
                raise file.error from error
            raise
        self.entries[Path(path).name] = file.entry

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.entries[Path(new_path).name] = self.entries.pop(Path(path).name)


@dataclass(frozen=True)
class _Sums(WriteResult):
    """Rides along with a rank's results to rank 0: `storage_data` is the entries by file name."""


class SealingWriter(FileSystemWriter):
    """DCP's writer into a fresh directory, that ends by handing its contents over to be sealed.

    Args:
        path: the temporary directory.
        seal: called on rank 0 when all files of all ranks are written and durable, with DCP's save
            id, the entries of all files and the shapes of all tensors. Its error fails the save on
            every rank.
        block_bytes: how much of a file one digest is for.
    """

    def __init__(
        self,
        path: Path,
        seal: Callable[[str, dict[str, FileEntry], dict[str, list[int]]], None],
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        # `sync_files` off: a `HashingFile` is durable when closed.
        super().__init__(path, sync_files=False, thread_count=1, overwrite=False)
        self.fs = self._hashing = HashingFileSystem(block_bytes)
        self._seal = seal

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        # The zip's CRC is never read back by torch and costs more than all digests together.
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        try:
            results = super().write_data(plan, planner).value()
        finally:
            torch.serialization.set_crc32_options(before)
        if len(results) != len(plan.items):
            raise RuntimeError(f"{len(results)} of {len(plan.items)} tensors were written")
        sums = _Sums(MetadataIndex(""), 0, dict(self._hashing.entries))
        future: Future[list[WriteResult]] = Future()
        future.set_result([*results, sums])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        files: dict[str, FileEntry] = {}
        written: list[list[WriteResult]] = []
        for of_rank in results:
            written.append([r for r in of_rank if not isinstance(r, _Sums)])
            for sums in of_rank:
                if isinstance(sums, _Sums):
                    files.update(cast(dict[str, FileEntry], sums.storage_data))
        tensors: dict[str, list[int]] = {}
        planned = 0
        for fqn, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise TypeError(f"{fqn} is not a tensor; other state belongs into `extra`")
            tensors[fqn] = list(entry.size)
            planned += len(entry.chunks)
        count = len({result.index for of_rank in written for result in of_rank})
        if count != planned:
            raise RuntimeError(f"{count} of {planned} planned tensors were written")
        super().finish(metadata, written)
        files |= self._hashing.entries
        self._seal(self.save_id, files, tensors)


class OwnershipPlanner(DefaultSavePlanner):
    """DCP's planner, which also notices a tensor that has several owners.

    DCP takes tensors of one name on several ranks for copies and writes one of them. That is right
    for what all ranks hold, and loses weights when experts were numbered per rank.
    """

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        owners = Counter(item.index.fqn for plan in all_plans for item in plan.items)
        odd = sorted(fqn for fqn, n in owners.items() if n not in (1, len(all_plans)))
        if odd:
            raise ValueError(
                f"{odd[0]} lies on {owners[odd[0]]} of {len(all_plans)} ranks,"
                " expected on one or on all"
            )
        return super().create_global_plan(all_plans)
