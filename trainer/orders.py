"""How orders reach all ranks in the same step.

Contract: rank 0 looks into the orders directory once an iteration; when something is new it raises
a flag that travels in the gradient all-reduce (a collective that exists anyway), and only then the
orders themselves are broadcast. Faults in force are handed out the same way and end by expiry,
which every rank checks for itself, or by being cleared.

Cost: one listdir an iteration on rank 0; nothing on the others.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

import msgspec
import torch.distributed as dist

from tailwatch import control
from tailwatch.control import Order
from tailwatch.records import EventKind


class Answer(Protocol):
    """Publishes the answer to an order as an event; only rank 0's does anything."""

    def __call__(self, kind: EventKind, order: Order, reason: str = "") -> None:
        """Publish one answer."""
        ...


class RankOrders:
    """One rank's view of the orders: what is new, and which faults are in force."""

    def __init__(self, directory: Path, rank: int, answer: Answer) -> None:
        self._directory = directory
        self._rank = rank
        self._answer = answer
        self._seen: set[str] = set()
        self._standing: list[Order] = []
        self._fresh: list[Order] = []

    def look(self) -> bool:
        """On rank 0: return whether there is something to tell the others."""
        if self._rank != 0:
            return False
        fresh: list[Order] = []
        for path in control.pending(self._directory, self._seen):
            self._seen.add(path.stem)
            try:
                fresh.append(control.read_order(path))
            except msgspec.MsgspecError as error:
                unreadable = Order(
                    id=path.stem, kind="checkpoint", by="unknown", reason="", deadline_ns=0
                )
                self._answer("order_refused", unreadable, f"unreadable: {error}")
        self._fresh = fresh
        self._standing_now = control.standing_faults(self._directory, time.time_ns())
        return bool(fresh) or [o.id for o in self._standing_now] != [o.id for o in self._standing]

    def spread(self) -> list[Order]:
        """Collective: return the new orders on every rank and put the standing faults in force."""
        message = [None, None] if self._rank else [self._fresh, self._standing_now]
        dist.broadcast_object_list(message, src=0)
        fresh, standing = message
        assert fresh is not None
        assert standing is not None
        self._standing = standing
        return [order for order in fresh if self._admit(order)]

    def _admit(self, order: Order) -> bool:
        if order.deadline_ns < time.time_ns():
            self._answer("order_expired", order)
            return False
        if order.kind in ("exclude", "pause", "resume"):
            self._answer("order_refused", order, f"this trainer cannot {order.kind}")
            return False
        self._answer("order_accepted", order)
        return True

    def resume(self, done: set[str]) -> None:
        """Collective, once an attempt: orders answered in earlier attempts are not new again."""
        self._seen |= done
        self.look()
        # What is pending now is looked at again at the first boundary, with its own flag.
        for order in self._fresh:
            self._seen.discard(order.id)
        self._fresh = []
        self.spread()

    def delay_seconds(self) -> float:
        """Return how long this rank must wait before its backward pass, by the faults in force."""
        if not self._standing:
            return 0.0
        now = time.time_ns()
        return sum(
            order.fault.delay_seconds
            for order in self._standing
            if order.fault and order.rank == self._rank and (order.fault_until_ns or 0) > now
        )
