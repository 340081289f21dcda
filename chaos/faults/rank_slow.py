"""One rank waits before each forward pass: late at the next exchange, for no other reason.

Seen from the other ranks: their wait in the counts exchange rises by about the delay, and the job's
steps take longer. What the slow rank says of itself is not looked at.
"""

from __future__ import annotations

import time
from statistics import median

from tailwatch import control
from tailwatch.chaos.faults.fault import Facts, Fault, UndoMode, register
from tailwatch.control import Order, RankFault
from tailwatch.evidence import LedgerEntry
from tailwatch.jobsteps import JobStep

# After the fault should have been seen, answered and undone: a forgotten one ends by itself.
MARGIN_SECONDS = 300.0
STEPS = 8


@register("rank-slow")
class RankSlow(Fault):
    """Gives the order `fault` with a delay, and clears it."""

    holds = True

    def resolve(self) -> Facts:
        """Freeze rank, node and pid."""
        process = self.rank_process()
        self.rank = process.rank
        self.order_id = control.new_order_id()
        self.injected_ns = self.undone_ns = 0
        return self.frozen(process)

    def undo_action(self) -> tuple[str, Facts]:
        """Clear the order."""
        return "clear-order", {"orders": str(self.run.orders), "order": self.order_id}

    def inject(self) -> Facts:
        """Give the order."""
        delay = self.experiment.delay_seconds
        assert delay is not None  # the plan was checked
        now = time.time_ns()
        order = Order(
            id=self.order_id,
            kind="fault",
            by="chaos",
            reason=self.experiment.name,
            deadline_ns=now + 30_000_000_000,
            rank=self.rank,
            fault=RankFault(delay_seconds=delay),
            fault_until_ns=now + int(self._longest() * 1e9),
        )
        control.submit(self.run.orders, order)
        self.injected_ns = now
        return {"order": self.order_id, "delay_seconds": delay}

    def _longest(self) -> float:
        plan = self.experiment
        deadline = max(alert.deadline_seconds for alert in plan.expected)
        return plan.reaction_seconds + deadline + plan.hold_seconds + MARGIN_SECONDS

    def seen(self) -> Facts | None:
        """The others wait for this rank by at least half the delay, over 8 steps."""
        steps = [s for s in self.context.feed.since(self.injected_ns) if s.comparable]
        if len(steps) < STEPS:
            return None
        facts = self._against_baseline(steps[-STEPS:])
        delay = self.experiment.delay_seconds or 0.0
        return facts if facts["others_wait_rise_seconds"] >= delay / 2 else None

    def undo(self, entry: LedgerEntry) -> UndoMode:
        """Clear the order, and remember when: what is judged are the steps after it."""
        mode = super().undo(entry)
        self.undone_ns = time.time_ns()
        return mode

    def undo_seen(self) -> Facts | None:
        """The others wait no longer than before."""
        steps = [s for s in self.context.feed.since(self.undone_ns) if s.comparable]
        if len(steps) < STEPS:
            return None
        facts = self._against_baseline(steps[-STEPS:])
        delay = self.experiment.delay_seconds or 0.0
        return facts if facts["others_wait_rise_seconds"] < delay / 4 else None

    def _against_baseline(self, steps: list[JobStep]) -> Facts:
        def others_wait(step: JobStep) -> float:
            waits = [wait for rank, wait in step.wait_s.items() if rank != self.rank]
            return median(waits) if waits else 0.0

        before = self.context.baseline
        return {
            "others_wait_rise_seconds": median(map(others_wait, steps))
            - median(map(others_wait, before)),
            "step_seconds": median(s.duration_s for s in steps),
            "step_seconds_before": median(s.duration_s for s in before),
            "steps": len(steps),
        }
