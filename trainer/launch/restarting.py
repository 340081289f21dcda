"""What a restart costs, from the fault to the end of the first step, part by part.

Contract: each launcher notes what it sees of an interruption and hands it to its ranks in their
environment; rank 0 hears all of them when the attempt is claimed, adds what ranks see, and the sum
of the parts is the time from the fault to the end of the first productive step. Times are wall
clock, so between nodes a part is as true as their clocks; no part is below zero.

The parts (`tailwatch.catalogue.restart`): `detect` until the first launcher knew, `teardown` until
the last launcher had no rank left, `rendezvous` until the last one knew its place, `import` until
the last rank ran its first line, `build` (process group, claim, model), `load` (the checkpoint,
verified), `first_step`.

Cost: one variable in the environment; a few hundred bytes in a gather that there is anyway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tailwatch.catalogue.restart import RESTART_PARTS
from tailwatch.trainer.launch.forkserver.worker import is_forked

VARIABLE = "TAILWATCH_INTERRUPTION"
Cause = Literal["failure", "membership"]


class Interruption(msgspec.Struct, kw_only=True):
    """How an attempt ended and the next began, as one launcher saw it; wall clock, ns.

    `ended_ns` is when its first rank ended; where that is not known, when it was noticed.
    """

    cause: Cause
    ended_ns: int
    noticed_ns: int
    stopped_ns: int = 0
    met_ns: int = 0

    @staticmethod
    def hand_over(interruption: Interruption | None) -> None:
        """Leave it, or that there was none, to the ranks that are started from now on."""
        os.environ.pop(VARIABLE, None)
        if interruption is not None:
            os.environ[VARIABLE] = msgspec.json.encode(interruption).decode()


class Arrival(msgspec.Struct, kw_only=True):
    """One rank, at its first line: what its launcher told it, and when that was."""

    interruption: Interruption | None
    began_ns: int
    forked: bool

    @classmethod
    def now(cls) -> Arrival:
        """Return that of this process."""
        told = os.environ.get(VARIABLE)
        return cls(
            interruption=msgspec.json.decode(told, type=Interruption) if told else None,
            began_ns=time.time_ns(),
            forked=is_forked(),
        )


class Restart:
    """The parts of one restart, put together from all ranks; call `done` at the end of each."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        seen = [a.interruption for a in arrivals if a.interruption is not None]
        self._forked = sum(arrival.forked for arrival in arrivals)
        self._failure = any(interruption.cause == "failure" for interruption in seen)
        self._edges: list[int] = []
        if seen:
            self._edges = [
                min(i.ended_ns for i in seen),
                min(i.noticed_ns for i in seen),
                max(i.stopped_ns for i in seen),
                max(i.met_ns for i in seen),
                max(arrival.began_ns for arrival in arrivals),
            ]

    def done(self) -> None:
        """Note the end of a part: build, then load, then first step."""
        self._edges.append(time.time_ns())

    def detail(self) -> dict[str, Any] | None:
        """Return the detail of the event `resumed`; None when nothing was interrupted."""
        if len(self._edges) != len(RESTART_PARTS) + 1:
            return None
        parts = {}
        reached = self._edges[0]
        for name, edge in zip(RESTART_PARTS, self._edges[1:], strict=True):
            parts[name] = max(edge - reached, 0) / 1e9
            reached = max(edge, reached)
        cause: Cause = "failure" if self._failure else "membership"
        seconds = (reached - self._edges[0]) / 1e9
        return {"parts": parts, "seconds": seconds, "cause": cause, "forked": self._forked}
