"""Digests of blocks, and the manifest that holds them."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash

from support.checkpoints import write_plain
from tailwatch.integrity import (
    MANIFEST_NAME,
    ManifestError,
    block_digest,
    expected_digest,
    read_manifest,
)
from tailwatch.integrity.blocks import file_digests
from tailwatch.integrity.manifest import decode_manifest, encode_manifest


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 640, 1000])
def test_digests_equal_a_plain_reference(tmp_path: Path, size: int) -> None:
    """The digests of a file are those of its slices, whatever its length."""
    data = random.Random(size).randbytes(size)
    path = tmp_path / "file"
    path.write_bytes(data)
    slices = [data[i : i + 64] for i in range(0, size, 64)]
    expected = [xxhash.xxh3_128(part).hexdigest() for part in slices]
    assert file_digests(path, 64) == (size, expected)
    assert [block_digest(path, i, 64) for i in range(len(slices))] == expected


@pytest.mark.parametrize("block", [-1, 2])
def test_a_block_outside_the_file_has_no_digest(tmp_path: Path, block: int) -> None:
    """A block the file does not have is an IndexError, not the digest of nothing."""
    (tmp_path / "file").write_bytes(bytes(100))
    with pytest.raises(IndexError):
        block_digest(tmp_path / "file", block, 64)


def test_expected_and_found_digest_prove_a_damage_from_outside(tmp_path: Path) -> None:
    """The digest on the disk equals the expected one until a byte of that block changes."""
    manifest = write_plain(tmp_path / "step-00000001", {"a": bytes(range(200))}, step=1)
    path = tmp_path / "step-00000001" / "a"
    assert block_digest(path, 1, 64) == expected_digest(manifest, "a", 1)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert block_digest(path, 1, 64) != expected_digest(manifest, "a", 1)
    assert block_digest(path, 0, 64) == expected_digest(manifest, "a", 0)


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """What is written is what is read, and the file ends with its own digest line."""
    manifest = write_plain(tmp_path / "step-00000007", {"a": b"abc", "b": b""}, step=7)
    assert read_manifest(tmp_path / "step-00000007") == manifest
    lines = (tmp_path / "step-00000007" / MANIFEST_NAME).read_bytes().splitlines()
    assert len(lines) == 2
    assert b"xxh3_128" in lines[1]
    assert xxhash.xxh3_128(lines[0]).hexdigest().encode() in lines[1]


def test_no_bit_of_a_manifest_can_flip_unnoticed(tmp_path: Path) -> None:
    """Every single flipped bit and every truncation of a manifest is refused."""
    manifest = write_plain(tmp_path / "step-00000007", {"a": bytes(100)}, step=7)
    data = encode_manifest(manifest)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(ManifestError):
                decode_manifest(bytes(damaged))
        with pytest.raises(ManifestError):
            decode_manifest(data[:position])
    with pytest.raises(ManifestError, match="zeros"):
        decode_manifest(bytes(len(data)))


def test_integrity_loads_neither_torch_nor_numpy() -> None:
    """The agent and the command line can judge checkpoints without the trainer's libraries."""
    code = (
        "import sys, tailwatch.integrity;print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
