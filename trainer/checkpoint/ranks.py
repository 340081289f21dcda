"""Decisions that all ranks share: one rank decides, or all report and see the same.

Contract: an error on any rank is raised on every rank, so none waits for another. Works without a
process group too, as one rank. Both calls are collective over a gloo group of their own: a save
that goes on beside the training must not meet the training's collectives.

Cost: two small gloo collectives per call, about 1 ms for 4 ranks on 2 cores.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Generic, TypeVar

import torch.distributed as dist

from tailwatch.trainer.checkpoint.errors import RankError, reason_of

# Longer than the slowest disk takes for a rank's share; a dead peer is noticed at once.
COLLECTIVE_SECONDS = 900.0

T = TypeVar("T")


class _Outcome(Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        self.value: T | None = None
        self.error: str = ""
        self.reason = ""
        self.raised: Exception | None = None
        try:
            self.value = function()
        except Exception as error:
            self.raised = error
            self.error = f"{type(error).__name__}: {error}"
            self.reason = getattr(error, "reason", "") or reason_of(error)

    def __getstate__(self) -> dict[str, object]:
        # Not every exception survives pickling, its words always do.
        return self.__dict__ | {"raised": None}

    def result(self, rank: int) -> T:
        if self.error:
            raise RankError(f"rank {rank}: {self.error}", reason=self.reason) from self.raised
        return self.value  # type: ignore[return-value]


class Ranks:
    """All ranks of the job in a group of their own, or the only one when there is no job.

    Making it is collective.
    """

    def __init__(self) -> None:
        self.alone = not dist.is_initialized()
        self.rank = 0 if self.alone else dist.get_rank()
        self.size = 1 if self.alone else dist.get_world_size()
        self.group: dist.ProcessGroup | None = None
        if not self.alone:
            timeout = dt.timedelta(seconds=COLLECTIVE_SECONDS)
            self.group = dist.new_group(backend="gloo", timeout=timeout)

    def decide(self, function: Callable[[], T]) -> T:
        """Call `function` on rank 0 and return its value on all; raise RankError on all."""
        outcome = [_Outcome(function)] if self.rank == 0 else [None]
        if self.size > 1:
            dist.broadcast_object_list(outcome, src=0, group=self.group)
        assert outcome[0] is not None
        return outcome[0].result(0)

    def gather(self, function: Callable[[], T]) -> list[T]:
        """Call `function` on all ranks and return all values on all; raise RankError on all."""
        mine = _Outcome(function)
        outcomes: list[_Outcome[T]] = [mine] * self.size
        if self.size > 1:
            dist.all_gather_object(outcomes, mine, group=self.group)
        return [outcome.result(rank) for rank, outcome in enumerate(outcomes)]
