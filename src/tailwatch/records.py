"""What a rank says about itself: one `StepRecord` per step and rank, and `Event`s.

Contract: msgpack on the wire and in the log, versioned; a reader of version N reads N-1. A step
is one optimizer update, an iteration one full RL cycle. A record is at most `MAX_RECORD_BYTES`
long, so a ring slot always holds one. Times named `*_ns` are nanoseconds: `start_ns` and
`time_ns` on the wall clock, everything else a duration or the monotonic clock of its host.

Cost: about 3 us to encode a StepRecord of 4 peers and 8 experts.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

VERSION = 1
MAX_RECORD_BYTES = 2032

# Exclusive parts of a step: they do not overlap, and `unaccounted` is what they leave over.
Phase = Literal[
    "data",
    "rollout_generate",
    "rollout_wait",
    "reward",
    "logprob_old",
    "logprob_ref",
    "advantage",
    "forward_backward",
    "grad_sync",
    "optimizer",
    "weight_sync",
    "checkpoint",
    "eval",
    "gc",
    "unaccounted",
]
# Parts of a phase: they happen inside `forward_backward` or `logprob_old` and are not added to it.
Child = Literal["ep_counts", "ep_dispatch", "ep_experts", "ep_combine"]

PHASES: tuple[str, ...] = get_args(Phase)
CHILDREN: tuple[str, ...] = get_args(Child)

Stage = Literal["sft", "grpo"]

EventKind = Literal[
    "start",
    "restart",
    "restore",
    "resumed",
    "checkpoint_staged",
    "checkpoint_written",
    "checkpoint_committed",
    "checkpoint_verified",
    "checkpoint_refused",
    "order_accepted",
    "order_done",
    "order_refused",
    "order_expired",
    "leave",
    "rejoin",
    "chaos_injected",
    "chaos_undone",
    "failure",
    "finish",
]


class StepRecord(msgspec.Struct, tag="step", kw_only=True, omit_defaults=True):
    """One step as one rank saw it.

    `configuration` names what makes two steps comparable (workload and world size): a p99
    baseline belongs to exactly one configuration. `waits_ns` is the time this rank stood where
    ranks of a group meet (ep: the small counts exchanges; dp: weight sync, the sums before the
    advantage, gradients): whoever waits least is the late one, and no clocks have to agree.
    `squared_tokens` is the sum of the squared lengths of the rank's sequences: attention grows with
    it. `rows_to`/`rows_from` are token rows sent to and received from each peer of the EP group,
    `expert_tokens` the tokens of each *local* expert, starting at `first_expert`, both summed over
    layers.
    """

    version: int = VERSION
    run: str
    attempt: int
    step: int
    iteration: int
    rank: int
    node: str
    world_size: int
    configuration: str
    stage: Stage
    role: str = "policy"
    start_ns: int
    start_mono_ns: int
    duration_ns: int
    phases_ns: dict[str, int]
    children_ns: dict[str, int] = {}
    waits_ns: dict[str, int] = {}
    tokens: int = 0
    squared_tokens: int = 0
    rows_to: list[int] = []
    rows_from: list[int] = []
    first_expert: int = 0
    expert_tokens: list[int] = []
    drops: int = 0
    policy_version: int = 0
    staleness: int = 0
    loss: float | None = None
    reward: float | None = None
    eval_reward: float | None = None
    peak_memory_bytes: int = 0
    warmup: bool = False


class Event(msgspec.Struct, tag="event", kw_only=True, omit_defaults=True):
    """Something that happened to a job; `detail` holds what the kind needs and nothing else.

    Source of an event: rank 0 of an attempt, a launcher (`launcher/<node>`) or `chaos`.
    """

    version: int = VERSION
    run: str
    attempt: int
    time_ns: int
    kind: EventKind
    source: str
    step: int | None = None
    rank: int | None = None
    node: str | None = None
    order: str | None = None
    detail: dict[str, Any] = {}


Record = StepRecord | Event

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)
_json_encoder = msgspec.json.Encoder()
_event_decoder = msgspec.json.Decoder(Event)


def encode(record: Record) -> bytes:
    """Return the record as msgpack; raise ValueError when it is longer than a ring slot holds."""
    data = _encoder.encode(record)
    if len(data) > MAX_RECORD_BYTES:
        raise ValueError(f"record of {len(data)} bytes, at most {MAX_RECORD_BYTES} fit a ring slot")
    return data


def decode(data: bytes | memoryview) -> Record:
    """Return the record in `data`; raise msgspec.MsgspecError when it is none."""
    return _decoder.decode(data)


def event_line(event: Event) -> bytes:
    """Return the event as one line of `events.jsonl`, newline included."""
    return _json_encoder.encode(event) + b"\n"


def parse_event_line(line: bytes | str) -> Event:
    """Return the event of one line of `events.jsonl`."""
    return _event_decoder.decode(line)
