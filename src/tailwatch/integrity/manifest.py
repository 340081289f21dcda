"""The manifest of a checkpoint: what was written, for which run and step, and its digests.

Contract: `MANIFEST.json` holds two lines of JSON: the manifest, and the digest of the first line.
It names every file of the directory but itself, `.metadata` of torch DCP included, so a file that
is added, lost, swapped or taken from another step does not pass. `step` and `run` bind it to the
directory it lies in.

Cost: 9 KiB per GiB of checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tailwatch.files import write_durably
from tailwatch.integrity.blocks import block_count, digest

MANIFEST_NAME = "MANIFEST.json"
SCHEMA = "tailwatch.checkpoint/1"

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


class FileEntry(msgspec.Struct, kw_only=True, frozen=True):
    """One file: its size in bytes and the xxh3_128 hex digest of each block of `block_bytes`."""

    size: int
    block_bytes: int
    digests: list[str]


class Manifest(msgspec.Struct, kw_only=True):
    """What a checkpoint holds. `extra` is the trainer's own state in JSON; shapes are elements.

    `save_id` is torch DCP's id of the one `save` call that wrote all the files; `mesh` the sizes of
    the dimensions of parallelism by name (`dp`, `ep`, `tp`, `pp`); `experts` how many there are in
    each layer that has any, None when there are none.
    """

    schema: str = SCHEMA
    run: str
    attempt: int
    step: int
    iteration: int
    world_size: int
    save_id: str
    files: dict[str, FileEntry]
    tensors: dict[str, list[int]]
    mesh: dict[str, int] = {}
    experts: int | None = None
    extra: dict[str, Any] = {}

    @property
    def total_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(entry.size for entry in self.files.values())


class ManifestError(Exception):
    """The manifest is there but cannot be believed; `fault` is the plain word for it."""

    def __init__(self, fault: str, detail: str) -> None:
        super().__init__(fault, detail)
        self.fault = fault
        self.detail = detail


class _Seal(msgspec.Struct, forbid_unknown_fields=True):
    xxh3_128: str


class _Header(msgspec.Struct):
    schema: str


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the two lines of `MANIFEST.json`."""
    body = msgspec.json.encode(manifest, order="deterministic")
    return body + b"\n" + msgspec.json.encode(_Seal(digest(body))) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest of the two lines; raise ManifestError with the word for what is wrong."""
    if not data:
        raise ManifestError("empty", "the manifest has 0 bytes")
    if not data.strip(b"\0"):
        raise ManifestError("zeros", "the manifest holds nothing but zeros")
    lines = data.split(b"\n")
    if len(lines) != 3 or lines[2]:
        raise ManifestError("truncated" if len(lines) < 3 else "changed", "not two whole lines")
    try:
        seal = msgspec.json.decode(lines[1], type=_Seal)
    except msgspec.MsgspecError as error:
        raise ManifestError("changed", "the digest line cannot be read") from error
    if seal.xxh3_128 != digest(lines[0]):
        raise ManifestError("changed", "the manifest does not match its own digest")
    try:
        if msgspec.json.decode(lines[0], type=_Header).schema != SCHEMA:
            raise ManifestError("unknown schema", f"expected {SCHEMA}")
        manifest = msgspec.json.decode(lines[0], type=Manifest)
    except msgspec.MsgspecError as error:
        raise ManifestError("changed", f"not a manifest: {error}") from error
    for name, entry in manifest.files.items():
        if entry.block_bytes < 1 or len(entry.digests) != block_count(
            entry.size, entry.block_bytes
        ):
            raise ManifestError("changed", f"the digests of {name} do not fit its size")
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a checkpoint directory.

    Raises FileNotFoundError when there is none and ManifestError when it cannot be believed.
    """
    return decode_manifest((directory / MANIFEST_NAME).read_bytes())


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest and make it and every name in the directory durable."""
    write_durably(directory / MANIFEST_NAME, encode_manifest(manifest))


def count_experts(tensors: Iterable[str]) -> int | None:
    """Return how many experts the layers have, going by the names of tensors; None without any.

    Experts are named by their global number: `<layer>.experts.<number>.<tensor>`. Raises ValueError
    naming a layer whose numbers have a gap, or that has not as many of each tensor as others have.
    """
    found: dict[tuple[str, str], set[int]] = {}
    for name in tensors:
        if match := _EXPERT.fullmatch(name):
            layer, number, tensor = match.groups()
            found.setdefault((layer, tensor), set()).add(int(number))
    if not found:
        return None
    count = max(max(numbers) for numbers in found.values()) + 1
    for (layer, tensor), numbers in sorted(found.items()):
        missing = sorted(set(range(count)) - numbers)
        if missing:
            raise ValueError(f"{layer} has no {tensor} of expert {missing[0]} of {count}")
    return count


def expected_digest(manifest: Manifest, file: str, block: int) -> str:
    """Return the digest that a block must have; KeyError or IndexError when there is none."""
    return manifest.files[file].digests[block]
