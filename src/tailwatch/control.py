"""Orders to a running job, and the one door they go through.

Contract: an order is one JSON file in `orders/` of the run directory, written whole (temporary
name, then rename) and named by its id, so order of arrival is order of names. Rank 0 reads the
directory at a step boundary and spreads what it found with the step's own collective: all ranks
act in the same step. Answers are events with the order's id: accepted, then done, refused or
expired. An order of kind `fault` stays in force for every attempt of the run until it expires or
is cleared; clearing is a file beside it, so that whoever holds the undo ledger can do it even
when no rank is alive.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tailwatch.files import write_durably

OrderKind = Literal["checkpoint", "leave", "rejoin", "exclude", "pause", "resume", "fault"]


class RankFault(msgspec.Struct, forbid_unknown_fields=True):
    """A fault inside a rank: the trainer's hook waits `delay_seconds` before each forward pass."""

    delay_seconds: float


class Order(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One order. `deadline_ns` is wall time: after it the order is answered `expired`."""

    id: Annotated[str, msgspec.Meta(max_length=64)]
    kind: OrderKind
    by: Annotated[str, msgspec.Meta(max_length=128)]
    reason: Annotated[str, msgspec.Meta(max_length=256)]
    deadline_ns: int
    node: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    rank: int | None = None
    fault: RankFault | None = None
    fault_until_ns: int | None = None


def new_order_id() -> str:
    """Return an id that sorts by time of creation."""
    return f"{time.time_ns():020d}-{secrets.token_hex(3)}"


def submit(orders: Path, order: Order) -> Path:
    """Write the order whole into the directory `orders` and return its file."""
    path = orders / f"{order.id}.json"
    write_durably(path, msgspec.json.encode(order))
    return path


def read_order(path: Path) -> Order:
    """Return the order in `path`; raise ValueError saying why when it is none.

    A fault must name a rank, a delay of 0 to 60 s and when it ends: one that cannot act, or never
    ends, is none.
    """
    try:
        order = msgspec.json.decode(path.read_bytes(), type=Order)
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"unreadable: {error}") from None
    if order.id != path.stem:
        raise ValueError(f"its id is {order.id[:64]!r}, expected that of its file")
    if order.kind == "fault":
        delay = order.fault.delay_seconds if order.fault is not None else -1.0
        if order.rank is None or order.fault_until_ns is None or not 0 <= delay <= 60:
            raise ValueError("a fault needs rank, fault_until_ns and a delay of 0 to 60 s")
    return order


def pending(orders: Path, seen: set[str]) -> list[Path]:
    """Return the order files whose ids are not in `seen`, oldest first."""
    try:
        names = [n for n in os.listdir(orders) if n.endswith(".json") and n[:-5] not in seen]
    except FileNotFoundError:
        return []
    return [orders / n for n in sorted(names)]


def clear_fault(orders: Path, order_id: str) -> None:
    """End a fault order for all ranks and all later attempts; doing it twice is harmless."""
    write_durably(orders / f"{order_id}.cleared", b"")


def stands(orders: Path, order: Order, now_ns: int) -> bool:
    """Whether a fault order is neither cleared nor expired at `now_ns`."""
    over = order.fault_until_ns is None or order.fault_until_ns <= now_ns
    return not over and not (orders / f"{order.id}.cleared").exists()


def standing_faults(orders: Path, now_ns: int) -> list[Order]:
    """Return the fault orders that are neither cleared nor expired; what is no order is left out.

    Cost: reads every order there is; for a hot loop keep the orders and ask `stands`.
    """
    faults = []
    for path in pending(orders, set()):
        try:
            order = read_order(path)
        except ValueError:
            continue
        if order.kind == "fault" and stands(orders, order, now_ns):
            faults.append(order)
    return faults
