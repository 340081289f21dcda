"""Bytes of a ring file.

    header   4,096 bytes: magic, version, mark slots, record slots, record bytes, rank, world size,
             attempt, pid; then a length (u16) and msgpack {run, node}
    marks    `mark_slots` x 24 bytes: monotonic ns (u64), step (u32), code (u16), argument (u16),
             sequence (u64); the mark with sequence s lies in slot (s - 1) % slots
    records  `record_slots` x 2,048 bytes: length (u32), crc32 (u32), sequence (u64), payload

A slot's sequence is the last thing that is written into it. The checksum of a record covers its
sequence too, so a slot whose content fits its checksum was read whole and says truly which record
it is; anything else is "not yet", "overwritten since" or damage. Sequences start at 1 and never
repeat within a file.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import NamedTuple

MAGIC = b"TWRING\x00\x01"
HEADER_BYTES = 4096
HEADER = struct.Struct("<8sHHIIIIIII")
MARK = struct.Struct("<QIHHQ")
RECORD_HEADER = struct.Struct("<IIQ")
RECORD_BYTES = 2048
PAYLOAD_BYTES = RECORD_BYTES - RECORD_HEADER.size
VERSION = 1
DEFAULT_MARK_SLOTS = 65_536
DEFAULT_RECORD_SLOTS = 4_096
# Room to plan for a rank: a ring takes about 10 MB, and the rings of three attempts may lie side by
# side until they are drained.
ROOM_BYTES = 3 * 10_500_000


class MarkCode(enum.IntEnum):
    """What a rank was about to do; END is added to a code when it is over."""

    STEP = 1
    DATA = 2
    ROLLOUT_GENERATE = 3
    ROLLOUT_WAIT = 4
    REWARD = 5
    LOGPROB_OLD = 6
    LOGPROB_REF = 7
    ADVANTAGE = 8
    FORWARD_BACKWARD = 9
    GRAD_SYNC = 10
    OPTIMIZER = 11
    WEIGHT_SYNC = 12
    CHECKPOINT = 13
    EVAL = 14
    GC = 15
    EP_COUNTS = 16
    EP_DISPATCH = 17
    EP_EXPERTS = 18
    EP_COMBINE = 19


END = 0x8000


class Mark(NamedTuple):
    """One mark; `argument` is the layer for ep_* codes and the group for collectives."""

    sequence: int
    mono_ns: int
    step: int
    code: MarkCode
    argument: int
    end: bool


def record_checksum(payload: bytes | memoryview, sequence: int) -> int:
    """Return the crc32 of a record slot: of its payload, started from its sequence."""
    return zlib.crc32(payload, (sequence ^ sequence >> 32) & 0xFFFFFFFF)


def ring_name(run: str, attempt: int, rank: int) -> str:
    """Return the file name of a ring."""
    return f"{run}.a{attempt:04d}.r{rank:05d}.ring"
