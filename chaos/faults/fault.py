"""What every fault can do, and the table of faults.

Contract: the runner polls `ready`, calls `resolve` once, then `undo_action` (written to the ledger
and fsynced), then `inject`; `seen`, `reacted` and `undo_seen` are polled and must not block.
Facts are plain data for the timeline; whoever judges decides what they mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tailwatch.chaos.feed import StepFeed
from tailwatch.chaos.ledger import Ledger
from tailwatch.chaos.targets import JobTarget, Lost
from tailwatch.evidence import Experiment, LedgerEntry
from tailwatch.jobsteps import JobStep
from tailwatch.runs import Attempt, RankProcess

Facts = dict[str, Any]
UndoMode = Literal["done", "none", "failed"]


@dataclass
class FaultContext:
    """What a fault works with. `baseline` are the job steps of the baseline window."""

    experiment: Experiment
    job: JobTarget
    feed: StepFeed
    ledger: Ledger
    baseline: list[JobStep]


class Fault(ABC):
    """One fault of one experiment."""

    # Whether time must pass under the fault before it is undone (`hold_seconds`).
    holds: ClassVar[bool] = False

    def __init__(self, context: FaultContext) -> None:
        self.context = context
        self.experiment = context.experiment
        self.run = context.job.run
        self.attempt = 0

    def newest_attempt(self) -> Attempt:
        """Return the newest attempt of the job, or raise Lost when there is none."""
        attempts = self.run.read_attempts()
        if not attempts:
            raise Lost("job", "has no attempt to aim at")
        return attempts[-1]

    def rank_process(self) -> RankProcess:
        """Return the process of the planned rank in the newest attempt."""
        attempt = self.newest_attempt()
        self.attempt = attempt.attempt
        wanted = self.experiment.target
        fitting = [
            process
            for process in attempt.ranks
            if (wanted.rank is None or process.rank == wanted.rank)
            and (wanted.node is None or process.node == wanted.node)
        ]
        if not fitting:
            where = f"rank {wanted.rank} on node {wanted.node}"
            raise Lost("target", f"attempt {attempt.attempt} has no {where}")
        return fitting[-1]

    def frozen(self, process: RankProcess) -> Facts:
        """Return the facts by which a rank is this very process of this very attempt."""
        return {
            "node": process.node,
            "rank": process.rank,
            "pid": process.pid,
            "start_ticks": process.start_ticks,
            "attempt": self.attempt,
        }

    def restarted(self) -> bool:
        """Whether an attempt after the one aimed at has restored and written whole steps."""
        newest = self.newest_attempt().attempt
        return newest > self.attempt and any(
            step.attempt == newest for step in self.context.feed.steps[-3:]
        )

    def ready(self) -> bool:
        """Whether the target can be chosen now; polled before `resolve`."""
        return True

    @abstractmethod
    def resolve(self) -> Facts:
        """Choose the target and freeze it."""

    @abstractmethod
    def undo_action(self) -> tuple[str, Facts]:
        """Return the name of the undo action and its arguments, for the ledger."""

    @abstractmethod
    def inject(self) -> Facts:
        """Do it."""

    @abstractmethod
    def seen(self) -> Facts | None:
        """Return what shows that the fault is in force at the target, or None so far."""

    def reacted(self) -> bool:
        """Whether the job has done what it must before the fault can be undone."""
        return True

    def undo(self, entry: LedgerEntry) -> UndoMode:
        """Undo it through the ledger; "none" when nothing of ours is left to undo."""
        return "done" if self.context.ledger.undo(entry).state == "undone" else "failed"

    @abstractmethod
    def undo_seen(self) -> Facts | None:
        """Return what shows that nothing of the fault is left, or None so far."""


_FAULTS: dict[str, type[Fault]] = {}


def register(kind: str) -> Callable[[type[Fault]], type[Fault]]:
    """Put a fault into the table under its name in plans."""

    def put(cls: type[Fault]) -> type[Fault]:
        _FAULTS[kind] = cls
        return cls

    return put


def make_fault(context: FaultContext) -> Fault:
    """Return the fault of the context's experiment."""
    return _FAULTS[context.experiment.fault](context)
