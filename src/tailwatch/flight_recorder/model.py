"""Dumps as the analysis sees them: groups, operations, and what each rank left.

Contract: sequence numbers compare inside one group only, and collectives only with collectives.
What "finished" means in a version or backend has been settled before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Group(msgspec.Struct, frozen=True, eq=False):
    """A process group; the dumps of all its ranks share the one object."""

    name: str
    members: tuple[int, ...]
    description: str = ""

    @property
    def label(self) -> str:
        """`name:description`, or the name alone where nobody described it."""
        if self.description in ("", "undefined"):
            return self.name
        return f"{self.name}:{self.description}"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One collective, send or receive of one rank.

    `sequence` counts collectives or, in a send or receive, these; `collectives` says how many
    collectives of its group the rank had enqueued by then. `peer` is a rank of the job.
    """

    record: int
    group: Group
    sequence: int
    collectives: int
    name: str
    sizes: Sequence[Any]
    dtypes: Sequence[str]
    created_ns: int
    timeout_ms: int
    finished: bool
    started: bool
    p2p: bool
    peer: int | None = None
    coalesced: bool = False


class Position(msgspec.Struct, frozen=True):
    """The last operation of a group that a rank enqueued, and completed, as its watchdog knows."""

    enqueued: int
    completed: int


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank left. `positions` count collectives and sends in one, as PyTorch does."""

    rank: int
    version: str
    groups: tuple[Group, ...]
    operations: tuple[Operation, ...]
    positions: Mapping[Group, Position]
    first_record: int
    timed: bool


class Dumps(msgspec.Struct, frozen=True):
    """All dumps of a job.

    Attributes:
        by_rank: the dumps that say something.
        silent: ranks of the job whose dump is missing or has no bytes.
        empty: those of `silent` whose file is there.
    """

    by_rank: Mapping[int, Dump]
    silent: frozenset[int]
    empty: frozenset[int]
