"""One experiment's share of the evidence: its moments, its target, its steps.

Contract: a view, nothing is judged here. All times are wall nanoseconds; a moment that the
timeline does not hold is None.
"""

from __future__ import annotations

import msgspec

from tailwatch.chaos.judge.gathered import Gathered
from tailwatch.evidence import Experiment, Observation, ObservationKind
from tailwatch.jobsteps import JobStep
from tailwatch.runs import Attempt
from tailwatch.verdicts import Check, Quantile


class Baseline(msgspec.Struct, kw_only=True):
    """The window that experiments are compared with; `bounds` is recomputed from its steps.

    `noted_ns` is when the runner had it.
    """

    noted_ns: int
    attempt: int
    first_step: int
    last_step: int
    configuration: str
    steps: list[JobStep]
    bounds: Quantile


class Case(msgspec.Struct, kw_only=True):
    """One experiment as the evidence shows it.

    `begin_ns` is the end of what came before (an earlier experiment or the run's start), `end_ns`
    its own end, `next_ns` the next injection; `baseline` is None when there was none. `earlier`
    are the experiments before it, in order.
    """

    experiment: Experiment
    gathered: Gathered
    earlier: list[Case]
    moments: dict[ObservationKind, Observation]
    begin_ns: int
    end_ns: int
    next_ns: int
    baseline: Baseline | None

    def at(self, kind: ObservationKind) -> int | None:
        """Return when the experiment's observation of this kind was made."""
        moment = self.moments.get(kind)
        return moment.time_ns if moment else None

    @property
    def injected_ns(self) -> int | None:
        """When the fault was in place, by the runner's word."""
        return self.at("injected")

    @property
    def node(self) -> str | None:
        """The target's node: frozen on the timeline, else where its rank ran."""
        frozen = self.fact("target", "node")
        if frozen is not None:
            return str(frozen)
        homes = [p.node for p in self.running.ranks if p.rank == self.rank] if self.running else []
        return homes[0] if homes else None

    @property
    def rank(self) -> int | None:
        """The target's rank; None for a fault of a whole node."""
        frozen = self.fact("target", "rank")
        return int(frozen) if isinstance(frozen, int) else None

    @property
    def running(self) -> Attempt | None:
        """The attempt that ran when the fault was injected."""
        moment = self.at("injecting") or self.injected_ns
        if moment is None:
            return None
        before = [a for a in self.gathered.attempts if a.started_ns <= moment]
        return max(before, key=lambda a: a.attempt) if before else None

    @property
    def later_attempts(self) -> list[Attempt]:
        """The attempts that started between the injection and the end of the experiment."""
        begin = self.at("injecting")
        if begin is None:
            return []
        return [a for a in self.gathered.attempts if begin < a.started_ns <= self.end_ns]

    @property
    def later_numbers(self) -> list[int]:
        """The numbers of all attempts in that time, also of those that died with an empty claim."""
        begin = self.at("injecting")
        if begin is None:
            return []
        unfilled = self.gathered.unfilled.items()
        died = [number for number, at_ns in unfilled if begin < at_ns <= self.end_ns]
        return sorted([*died, *(a.attempt for a in self.later_attempts)])

    def fact(self, kind: ObservationKind, name: str) -> object:
        """Return a fact that the runner noted with a moment, or None."""
        moment = self.moments.get(kind)
        return moment.data.get(name) if moment else None

    def steps_of(self, attempt: int) -> list[JobStep]:
        """Return the job steps of an attempt."""
        return [step for step in self.gathered.steps if step.attempt == attempt]

    def steps_between(self, begin_ns: int, end_ns: int) -> list[JobStep]:
        """Return the comparable job steps that lie wholly in a window."""
        return [
            step
            for step in self.gathered.steps
            if step.comparable and step.start_ns >= begin_ns and step.end_ns <= end_ns
        ]


def reported(case: Case, kind: ObservationKind, what: str) -> Check:
    """Whether the runner says that it saw something at the target."""
    name = f"{what}: reported"
    moment = case.moments.get(kind)
    if moment is None:
        return Check(name=name, passed=None, detail=f"The timeline has no {kind}.")
    if moment.data.get("seen") is True:
        return Check(name=name, passed=True, detail=f"The runner saw the {what} at the target.")
    reason = moment.data.get("reason")
    why = f": {reason}" if reason else ""
    detail = f"The runner did not see the {what} at the target{why}."
    return Check(name=name, passed=False, detail=detail)
