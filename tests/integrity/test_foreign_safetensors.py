"""safetensors files and their indexes."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from support.foreign import hugging_face, only, values


def write(path: Path) -> bytes:
    """Write a small file with the real library and return its bytes."""
    weights = {"a": values(1, 6).reshape(2, 3), "b": values(2, 4).half(), "c": torch.tensor(3)}
    save_file(weights, path, metadata={"format": "pt"})
    return path.read_bytes()


def test_a_whole_file_is_unverifiable(tmp_path: Path) -> None:
    """There is no checksum in the format, so whole is the most that can be said."""
    write(tmp_path / "model.safetensors")
    found = only(tmp_path / "model.safetensors")
    assert found.verdict == "unverifiable"
    assert "no checksum to check model.safetensors" in found.reasons[0]


def test_no_flip_is_ever_valid(tmp_path: Path) -> None:
    """Of all single-byte changes none is valid; what the library refuses is corrupt here, too."""
    path = tmp_path / "model.safetensors"
    whole = write(path)
    header = 8 + int.from_bytes(whole[:8], "little")
    for offset in range(len(whole)):
        data = bytearray(whole)
        data[offset] ^= 1 << (offset % 7)
        path.write_bytes(data)
        verdict = only(path).verdict
        assert verdict in ("unverifiable", "corrupt")
        try:
            load_file(path)
        except (SafetensorError, OSError, ValueError, KeyError):
            assert verdict == "corrupt", f"byte {offset}, header ends at {header}"


@pytest.mark.parametrize("size", [0, 1, 7, 8, 40, -1, -8])
def test_a_cut_file(tmp_path: Path, size: int) -> None:
    """A file that ends early is empty or truncated, wherever it was cut."""
    path = tmp_path / "model.safetensors"
    whole = write(path)
    path.write_bytes(whole[:size])
    found = only(path)
    assert found.verdict == "corrupt"
    assert ("truncated" if size else "empty") in found.reasons[0]


def raw(header: dict[str, Any], data: int) -> bytes:
    """Return a file with this header and so many bytes of data."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\1" * data


def entry(begin: int, end: int, **more: Any) -> dict[str, Any]:
    """Return a tensor of bytes at a place."""
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end], **more}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (raw({"a": entry(0, 4), "b": entry(6, 8)}, 8), "gap"),
        (raw({"a": entry(0, 4), "b": entry(2, 8)}, 8), "overlap"),
        (raw({"a": entry(0, 8)}, 9), "longer"),
        (raw({"a": entry(0, 8)}, 7), "truncated"),
        (raw({"a": entry(0, 8, shape=[3])}, 8), "do not agree"),
        (raw({"a": entry(0, 8, shape=[-2, -4])}, 8), "do not agree"),
        (raw({"a": entry(0, 8, dtype="U7")}, 8), "unknown"),
        (raw({"a": 5}, 8), "no table"),
        (struct.pack("<Q", 1 << 60) + b"{}", "claim"),
        (bytes(4096), "zeros"),
        (struct.pack("<Q", 64) + bytes(128), "zeros"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git-lfs pointer"),
        (b"<!DOCTYPE html><html><title>Sign in</title></html>", "web page"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "no table"),
    ],
)
def test_what_a_file_may_be_instead(tmp_path: Path, content: bytes, word: str) -> None:
    """Each fault of a file has its plain word."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    found = only(path)
    assert found.verdict in ("corrupt", "incomplete")
    assert word in found.reasons[0]


def test_a_tail_of_zeros(tmp_path: Path) -> None:
    """Zeros from the middle of a row on were never written; a padded last row is only doubted."""
    path = tmp_path / "model.safetensors"
    save_file({"w": values(1, 64 * 1000).reshape(64, 1000)}, path)
    size = path.stat().st_size
    os.truncate(path, size - 100_002)
    os.truncate(path, size)
    torn = only(path)
    assert (torn.verdict, torn.files[0].faults) == ("corrupt", ["zeros"])
    padded = torch.cat([values(1, 62 * 1000).reshape(62, 1000), torch.zeros(2, 1000)])
    save_file({"w": padded}, path)
    assert only(path).verdict == "unverifiable"
    assert "zeros" in only(path).reasons[0]
    save_file({"w": torch.zeros(64, 1000)}, path)
    assert only(path).verdict == "corrupt"


def index(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the index of a checkpoint."""
    path = directory / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_an_index_against_its_shards(tmp_path: Path) -> None:
    """Shards must be there and hold what the index says, in the size that it says."""
    directory = hugging_face(tmp_path, 10, shards=2)
    assert only(directory).verdict == "unverifiable"
    index(directory, lambda content: content["metadata"].update(total_size=17))
    assert "is mixed: it says 17 bytes" in only(directory).reasons[0]
    index(directory, lambda content: content["weight_map"].pop("layer.0.weight"))
    assert "also holds layer.0.weight" in " ".join(only(directory).reasons)
    index(directory, lambda content: content.update(weight_map=[]))
    assert "no index with a weight_map" in only(directory).reasons[0]


@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_shard(tmp_path: Path, with_index: bool) -> None:
    """A shard that is gone is missed with the index, and without it by its number."""
    directory = hugging_face(tmp_path, 10, shards=3)
    (directory / "model-00002-of-00003.safetensors").unlink()
    if not with_index:
        (directory / "model.safetensors.index.json").unlink()
    found = only(directory)
    assert found.verdict == "incomplete"
    assert "model-00002-of-00003.safetensors is missing" in found.reasons[0]
