"""Unpickling what torch DCP writes, and nothing else.

Contract: both unpicklers know a closed list of names; anything else raises UnpicklingError before
it is imported. They are the second lock: no pickle is opened at all unless the manifest vouches for
its bytes. `load_metadata` reads `.metadata`; `load_tensor_head` reads the head of one saved tensor
(what it looks like and where its bytes lie) without its bytes.
"""

from __future__ import annotations

import collections
import importlib
import io
import pathlib
import pickle
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch.distributed.checkpoint.metadata import Metadata

_METADATA = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
}  # fmt: skip


class _Strict(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"refers to {pid!r}, expected nothing outside")

    def refuse(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"names {module}.{name}, which no checkpoint needs")


class _MetadataUnpickler(_Strict):
    def find_class(self, module: str, name: str) -> Any:
        if name in _METADATA.get(module, ()):
            return getattr(importlib.import_module(module), name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if module == "pathlib" and name in ("Path", "PosixPath"):
            return pathlib.PurePosixPath
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        self.refuse(module, name)


def load_metadata(file: io.IOBase) -> Metadata:
    """Return DCP's metadata; raise UnpicklingError when it names what it must not, or is none."""
    found = _MetadataUnpickler(cast(Any, file)).load()
    if not isinstance(found, Metadata):
        raise pickle.UnpicklingError(f"holds a {type(found).__name__}, expected DCP's metadata")
    return found


@dataclass(frozen=True)
class TensorHead:
    """A saved tensor without its bytes; `offset` and `stride` count elements of the storage."""

    dtype: torch.dtype
    key: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in order, without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.size), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


def _rebuild(
    storage: tuple[Any, str], offset: int, size: Any, stride: Any, *rest: Any
) -> TensorHead:
    # requires_grad, backward hooks, and since v3 the dtype
    dtype = rest[2] if len(rest) > 2 and isinstance(rest[2], torch.dtype) else storage[0]
    if not isinstance(dtype, torch.dtype):
        raise pickle.UnpicklingError("a tensor without a dtype")
    return TensorHead(dtype, storage[1], int(offset), tuple(size), tuple(stride))


class _HeadUnpickler(_Strict):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (
            ("torch._utils", "_rebuild_tensor_v2"),
            ("torch._utils", "_rebuild_tensor_v3"),
        ):
            return _rebuild
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda head, *_: head
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return None
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        if isinstance(found, type) and name.endswith("Storage"):
            return getattr(found, "_dtype", None)  # `dtype` warns of its age
        self.refuse(module, name)

    def persistent_load(self, pid: Any) -> tuple[Any, str]:
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(key, str):
            raise pickle.UnpicklingError(f"refers to {kind!r}, expected a storage")
        return dtype, key


def load_tensor_head(data: bytes) -> TensorHead:
    """Return the head of a tensor from the pickle in its file; raise UnpicklingError if it is none.

    Storages of other kinds (quantised, sparse) are none.
    """
    head = _HeadUnpickler(io.BytesIO(data)).load()
    if not isinstance(head, TensorHead) or len(head.size) != len(head.stride):
        raise pickle.UnpicklingError("expected one dense tensor")
    return head
