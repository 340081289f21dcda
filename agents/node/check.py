"""Whether a record can be what its ring says it is.

Contract: nothing a rank writes is believed that the agent can know better. Which run, attempt,
rank and world a record belongs to is the header of its ring, its node is the agent's own; a record
that says otherwise is not corrected but refused. Numbers that would poison sums are refused too.

Cost: about 4 us a record, nearly all of it decoding.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from tailwatch.records import CHILDREN, PHASES, Record, StepRecord, decode

Reason = Literal["unreadable", "identity", "value"]

# 11 days in nanoseconds: longer than any step, and far below what a float sums exactly.
_LONGEST_NS = 10**15
# What becomes a label value, here or in the job agent, comes from a closed set or is short.
_LONGEST_NAME = 128
_MOST_GROUPS = 16


_PHASES = frozenset(PHASES)
_CHILDREN = frozenset(CHILDREN)


class Identity(Protocol):
    """What a ring header says."""

    run: str
    attempt: int
    rank: int
    world_size: int


def check(payload: bytes, ring: Identity, node: str) -> Record | Reason:
    """Return the record in `payload`, or why it is refused."""
    try:
        record = decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "unreadable"
    if (record.run, record.attempt) != (ring.run, ring.attempt):
        return "identity"
    if not isinstance(record, StepRecord):
        agrees = record.rank in (None, ring.rank) and record.node in (None, node)
        return record if agrees else "identity"
    if (record.rank, record.world_size, record.node) != (ring.rank, ring.world_size, node):
        return "identity"
    return record if _plausible(record) else "value"


def _named_well(record: StepRecord) -> bool:
    names = (record.configuration, record.role, *record.waits_ns)
    return (
        record.phases_ns.keys() <= _PHASES
        and record.children_ns.keys() <= _CHILDREN
        and len(record.waits_ns) <= _MOST_GROUPS
        and all(len(name) <= _LONGEST_NAME and name.isprintable() for name in names)
    )


def _plausible(record: StepRecord) -> bool:
    times = (record.duration_ns, *record.phases_ns.values(), *record.waits_ns.values())
    counts = (record.step, record.iteration, record.peak_memory_bytes, *record.expert_tokens)
    return (
        all(0 <= t <= _LONGEST_NS for t in times)
        and all(0 <= n < 1 << 63 for n in counts)
        and 0 < record.start_ns < 1 << 63
        and 0 <= record.first_expert < 1 << 20
        and _named_well(record)
    )
