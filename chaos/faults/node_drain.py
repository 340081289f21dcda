"""A node is ordered to leave, as an eviction would, and comes back later."""

from __future__ import annotations

import time

from tailwatch import control
from tailwatch.chaos.faults.fault import Facts, Fault, UndoMode, register
from tailwatch.chaos.targets import Lost
from tailwatch.control import Order
from tailwatch.evidence import LedgerEntry
from tailwatch.processes import same_process


@register("node-drain")
class NodeDrain(Fault):
    """Gives the order `leave` for a node; the undo starts the node again."""

    holds = True

    def resolve(self) -> Facts:
        """Freeze the node, its ranks and how many ranks there are in all."""
        process = self.rank_process()
        self.node = process.node
        attempt = self.newest_attempt()
        self.ranks = [p for p in attempt.ranks if p.node == self.node]
        self.world_size = attempt.world_size
        if len(self.ranks) == self.world_size:
            raise Lost("target", f"{self.node} is the only node; nothing would be left")
        return {
            "node": self.node,
            "attempt": self.attempt,
            "ranks": [p.rank for p in self.ranks],
            "pids": [p.pid for p in self.ranks],
        }

    def undo_action(self) -> tuple[str, Facts]:
        """The node can only be brought back by who runs the job; without the job there is none."""
        return "none", {"node": self.node}

    def inject(self) -> Facts:
        """Give the order."""
        order = Order(
            id=control.new_order_id(),
            kind="leave",
            by="chaos",
            reason=self.experiment.name,
            deadline_ns=time.time_ns() + int(self.experiment.reaction_seconds * 1e9),
            node=self.node,
        )
        control.submit(self.run.orders, order)
        return {"order": order.id, "node": self.node}

    def seen(self) -> Facts | None:
        """The launcher and all ranks of the node are gone."""
        alive = [p.pid for p in self.ranks if same_process(p.pid, p.start_ticks)]
        if alive or self.context.job.node_running(self.node):
            return None
        return {"launcher_gone": True, "ranks_gone": [p.pid for p in self.ranks]}

    def reacted(self) -> bool:
        """The nodes that stay train on with a smaller world."""
        return self.restarted() and self.context.feed.steps[-1].world_size < self.world_size

    def undo(self, entry: LedgerEntry) -> UndoMode:
        """Start the node again."""
        self.context.job.start_node(self.node)
        return super().undo(entry)

    def undo_seen(self) -> Facts | None:
        """The node is back in an attempt of the whole world that trains."""
        attempt = self.newest_attempt()
        if attempt.world_size < self.world_size or not self.context.feed.steps:
            return None
        if self.context.feed.steps[-1].attempt != attempt.attempt:
            return None
        back = [p for p in attempt.ranks if p.node == self.node]
        return {"world_size": attempt.world_size, "ranks": len(back)} if back else None
