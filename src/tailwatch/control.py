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
from typing import Literal

import msgspec

from tailwatch.files import write_durably

OrderKind = Literal["checkpoint", "leave", "rejoin", "exclude", "pause", "resume", "fault"]


class RankFault(msgspec.Struct, forbid_unknown_fields=True):
    """A fault inside a rank: the trainer's hook waits `delay_seconds` before each backward pass."""

    delay_seconds: float


class Order(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One order. `deadline_ns` is wall time: after it the order is answered `expired`."""

    id: str
    kind: OrderKind
    by: str
    reason: str
    deadline_ns: int
    node: str | None = None
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
    """Return the order in `path`; raise msgspec.MsgspecError when it is none."""
    return msgspec.json.decode(path.read_bytes(), type=Order)


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


def standing_faults(orders: Path, now_ns: int) -> list[Order]:
    """Return the fault orders that are neither cleared nor expired at `now_ns`."""
    faults = []
    for path in pending(orders, set()):
        if path.with_suffix(".cleared").exists():
            continue
        order = read_order(path)
        if order.kind == "fault" and (order.fault_until_ns or 0) > now_ns:
            faults.append(order)
    return faults
