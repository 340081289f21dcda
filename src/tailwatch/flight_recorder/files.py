"""Finds the files of dumps in a directory and checks their form.

Contract: a file belongs to the rank at the end of its name (`_dump_3`, `nccl_trace_rank_3.json`); a
JSON file without a number may hold several ranks, and where single files stand beside it they go
first. A rank that stands twice is refused. Versions 2.0 to 2.10 of the format have been looked at.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tailwatch.errors import UsageError
from tailwatch.flight_recorder.contents import load
from tailwatch.flight_recorder.model import Group

_NUMBERED = re.compile(r"^(?P<prefix>.*?)(?P<rank>\d{1,7})(?:\.(?:json|pkl|pickle|pt|bin|dump))?$")
_LATEST_NS = 4_102_444_800 * 10**9
MOST_RANKS = 1 << 20


class Entry(msgspec.Struct):
    """One record of the ring; what a version lacks has a default."""

    profiling_name: str
    record_id: int = -1
    pg_id: int = -1
    process_group: tuple[str, str] | None = None
    collective_seq_id: int | None = None
    seq_id: int | None = None
    p2p_seq_id: int = 0
    input_sizes: list[Any] = []
    input_dtypes: list[str] = []
    state: str = "scheduled"
    time_created_ns: int = 0
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    timeout_ms: int = 0
    retired: bool = False
    is_p2p: bool = False


class Config(msgspec.Struct):
    """A process group; `ranks` is a list, or one as text."""

    ranks: str | list[int]
    desc: str = ""


class Status(msgspec.Struct):
    """How far the watchdog saw a process group come."""

    last_enqueued_collective: int = -1
    last_started_collective: int = -1
    last_completed_collective: int = -1


class Content(msgspec.Struct):
    """One dump."""

    entries: list[Entry]
    version: str
    pg_config: dict[str, Config] = {}
    pg_status: dict[str, Status] = {}


class RawDump(msgspec.Struct):
    """One dump, where it was found, and its groups by name."""

    rank: int
    source: str
    content: Content
    groups: dict[str, Group] = {}


def read_files(path: Path) -> tuple[list[RawDump], set[int]]:
    """Return the dumps below a path, and the ranks whose file has no bytes."""
    if path.is_file():
        return _contents(path, load(path), None), set()
    try:
        files = sorted(
            file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")
        )
    except OSError as error:
        raise UsageError(f"{error.strerror}; expected a directory of dumps", source=path) from error
    found: dict[int, RawDump] = {}
    empty: set[int] = set()
    names: dict[int, str] = {}
    for file in sorted(_dump_files(files), key=lambda f: _NUMBERED.match(f.name) is None):
        numbered = _NUMBERED.match(file.name)
        rank = int(numbered["rank"]) if numbered else None
        if rank is not None and rank in names:
            raise UsageError(f"rank {rank} stands in {names[rank]}, too", source=file)
        content = load(file)
        if rank is not None:
            names[rank] = file.name
            if content is None:
                empty.add(rank)
                continue
        # A file of many ranks beside files of single ranks repeats them.
        for one in _contents(file, content, rank):
            found.setdefault(one.rank, one)
    return list(found.values()), empty - found.keys()


def _dump_files(files: Iterable[Path]) -> list[Path]:
    numbered: dict[str, list[Path]] = defaultdict(list)
    others = []
    for file in files:
        if found := _NUMBERED.match(file.name):
            numbered[found["prefix"]].append(file)
        elif file.suffix == ".json":
            others.append(file)
    telling = [name for name in numbered if re.search(r"dump|trace|rank", name, re.IGNORECASE)]
    return others + [file for name in telling or numbered for file in numbered[name]]


def _contents(path: Path, content: Any, rank: int | None) -> list[RawDump]:
    if rank is not None or (isinstance(content, dict) and "entries" in content):
        if rank is None:
            rank = content.get("rank")
        if not isinstance(rank, int):
            raise UsageError("expected the rank as a number at the end of the name", source=path)
        return [_raw(path, content, rank)]
    if isinstance(content, dict) and len(content) == 1 and "ranks" in content:
        content = content["ranks"]
    if isinstance(content, dict):
        pairs = [(re.search(r"(\d{1,7})$", str(key)), value) for key, value in content.items()]
        if pairs and all(key is not None for key, _ in pairs):
            return [_raw(path, value, int(key[1])) for key, value in pairs if key and value]
    if isinstance(content, list) and content and all(isinstance(one, dict) for one in content):
        return [_raw(path, one, one.get("rank", index)) for index, one in enumerate(content)]
    raise UsageError("expected a dump, or dumps by rank", source=path)


def _raw(path: Path, content: Any, rank: Any) -> RawDump:
    try:
        if not isinstance(rank, int) or not 0 <= rank < MOST_RANKS:
            raise UsageError(f"rank {rank!r} is no rank", source=path)
        converted = msgspec.convert(content, Content, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(f"{error}; expected a flight recorder dump", source=path) from error
    if not re.fullmatch(r"2\.\d+", converted.version):
        raise UsageError(f"version {converted.version[:20]!r}; expected 2.x", source=path)
    for number, entry in enumerate(converted.entries):
        if not 0 <= entry.time_created_ns < _LATEST_NS:
            raise UsageError(
                f"{entry.time_created_ns} is no time in unix ns",
                source=path,
                place=f"entries[{number}].time_created_ns",
            )
    return RawDump(rank, str(path), converted)
