"""The step times before, during and after a fault, cut from the run as the judge cuts them.

Contract: only comparable steps (GRPO, not warming up) count, in whole. Before: the steps of the
baseline window noted on the timeline. During: between injection and undo, of the one configuration
that has most of them. After: the first steps of the baseline's configuration after the undo (after
the injection where nothing is undone) and before the next injection, as many as the plan counts.
The verdict's own p99 stays the verdict's; this module gives the samples to draw.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tailwatch.evidence import Criteria, FaultKind, Observation, ObservationKind
from tailwatch.jobsteps import JobStep, durations
from tailwatch.report.history import History, Window
from tailwatch.verdicts import ExperimentOutcome

_KILLS: tuple[FaultKind, ...] = ("rank-kill", "checkpoint-corrupt")


def windows(history: History, outcome: ExperimentOutcome) -> list[Window]:
    """Return the three windows of an experiment in order; one that is not known has no steps."""
    steps = [step for step in history.steps if step.comparable]
    seen = history.observations
    moments = {o.kind: o.time_ns for o in seen if o.experiment == outcome.name}
    injected, undone = moments.get("injected"), moments.get("undone")
    before = _baseline(steps, seen)
    during: list[JobStep] = []
    after: list[JobStep] = []
    if injected is not None:
        end = undone or moments.get("experiment_finished") or math.inf
        during = _busiest(_between(steps, injected, end))
        anchor = injected if outcome.fault in _KILLS else undone
        if anchor is not None and before:
            most = (history.plan.criteria if history.plan else Criteria()).recovery_steps
            rest = _between(steps, anchor, _next_injection(seen, injected))
            after = [s for s in rest if s.configuration == before[0].configuration][:most]
    return [
        Window("before", durations(before)),
        Window("during", durations(during)),
        Window("after", durations(after)),
    ]


def _baseline(steps: list[JobStep], seen: list[Observation]) -> list[JobStep]:
    noted = [o.data for o in seen if o.kind == "baseline"]
    if not noted:
        return []
    try:
        first, last = int(noted[-1]["first_step"]), int(noted[-1]["last_step"])
        attempt, configuration = int(noted[-1]["attempt"]), str(noted[-1]["configuration"])
    except (KeyError, TypeError, ValueError):
        return []
    return [
        s
        for s in steps
        if first <= s.step <= last and (s.attempt, s.configuration) == (attempt, configuration)
    ]


def _between(steps: list[JobStep], begin: float, end: float) -> list[JobStep]:
    return [s for s in steps if s.start_ns >= begin and s.end_ns <= end]


def _busiest(steps: list[JobStep]) -> list[JobStep]:
    if not steps:
        return []
    counts = Counter(s.configuration for s in steps)
    most = max(counts, key=lambda name: (counts[name], name))
    return [s for s in steps if s.configuration == most]


def _next_injection(seen: Sequence[Observation], after_ns: int) -> float:
    kind: ObservationKind = "injecting"
    return min(
        (o.time_ns for o in seen if o.kind == kind and o.time_ns > after_ns), default=math.inf
    )
