"""How orders reach all ranks in the same step.

Contract: rank 0 looks into the orders directory once an iteration; when something is new it raises
a flag that travels in the gradient all-reduce (a collective that exists anyway), and only then the
orders are broadcast. Whether an order is carried out is decided by rank 0 alone, so that no two
ranks can differ; a bad order is refused with a reason and never stops the job. Faults in force are
handed out the same way and end by being cleared or by expiry, which every rank checks for itself.

Cost: one listdir an iteration on rank 0, and one stat a fault in force; nothing on the others.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from tailwatch import control
from tailwatch.control import Order
from tailwatch.records import EventKind


class Answer(Protocol):
    """Publishes the answer to an order as an event, on rank 0."""

    def __call__(self, kind: EventKind, order: Order, reason: str = "") -> None:
        """Publish one answer."""
        ...


class RankOrders:
    """One rank's view of the orders: what is new, and which faults are in force.

    Args:
        nodes: the nodes of this attempt; only they can be ordered to leave.
        answered: ids that earlier attempts have answered; needed on rank 0 only.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        *,
        nodes: Collection[str],
        answered: Collection[str],
        answer: Answer,
    ) -> None:
        self._directory = directory
        self._rank = rank
        self._nodes = set(nodes)
        self._answer = answer
        self._seen: set[str] = set(answered)
        self._fresh: list[Order] = []
        self._faults: list[Order] = []
        if rank == 0:
            now = time.time_ns()
            standing = control.standing_faults(directory, now)
            # A fault that was in force goes on in this attempt; one not yet answered is news.
            self._faults = [order for order in standing if order.id in self._seen]

    def look(self) -> bool:
        """On rank 0: return whether there is something to tell the others."""
        if self._rank != 0:
            return False
        for path in control.pending(self._directory, self._seen):
            self._seen.add(path.stem)
            try:
                order = control.read_order(path)
            except ValueError as error:
                unread = Order(
                    id=path.stem[:64], kind="checkpoint", by="", reason="", deadline_ns=0
                )
                self._answer("order_refused", unread, str(error)[:256])
                continue
            if self._admit(order):
                self._fresh.append(order)
        return bool(self._fresh) or self._still_standing() != self._faults

    def spread(self) -> list[Order]:
        """Collective: return the new orders on every rank and put the standing faults in force."""
        message: list[list[Order]] = [[], []]
        if self._rank == 0:
            faults = [order for order in self._fresh if order.kind == "fault"]
            message = [self._fresh, self._still_standing() + faults]
        dist.broadcast_object_list(message, src=0)
        fresh, self._faults = message
        self._fresh = []
        return fresh

    def delay_seconds(self) -> float:
        """Return how long this rank must wait before its forward pass, by the faults in force."""
        if not self._faults:
            return 0.0
        now = time.time_ns()
        return sum(
            order.fault.delay_seconds
            for order in self._faults
            if order.fault and order.rank == self._rank and (order.fault_until_ns or 0) > now
        )

    def _still_standing(self) -> list[Order]:
        now = time.time_ns()
        return [order for order in self._faults if control.stands(self._directory, order, now)]

    def _admit(self, order: Order) -> bool:
        reason = ""
        if order.deadline_ns < time.time_ns():
            self._answer("order_expired", order)
            return False
        if order.kind in ("exclude", "pause", "resume"):
            reason = f"this trainer cannot {order.kind}"
        elif order.kind == "leave" and order.node not in self._nodes:
            reason = f"node {order.node} is not in this attempt"
        elif order.kind == "fault" and (order.rank or 0) >= dist.get_world_size():
            reason = f"rank {order.rank} is not in this attempt"
        if reason:
            self._answer("order_refused", order, reason)
            return False
        self._answer("order_accepted", order)
        return True
