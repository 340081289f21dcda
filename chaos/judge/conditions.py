"""What spoils an experiment from outside: missing evidence, a lost part, a clock that jumped.

Contract: each function returns checks that are True or None, never False: a spoiled experiment
proves nothing, good or bad.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tailwatch.chaos.judge.case import Case
from tailwatch.chaos.judge.gathered import Gathered
from tailwatch.evidence import Observation, QueryResult
from tailwatch.verdicts import Check

CLOCK_TOLERANCE_S = 0.5


def condition_checks(case: Case) -> list[Check]:
    """Return whether the evidence of an experiment can be relied on."""
    return [
        _complete(case), _nothing_lost(case), _clock(case), _prometheus(case), _target(case),
    ]  # fmt: skip


def jumps(timeline: list[Observation]) -> list[tuple[int, float]]:
    """Return when the wall clock moved against the monotonic one, and by how many seconds.

    Both what the runner noted and what follows from the times of its observations.
    """
    found = [(o.time_ns, jump_seconds(o)) for o in timeline if o.kind == "clock_jump"]
    for before, after in pairwise(timeline):
        moved = ((after.time_ns - before.time_ns) - (after.mono_ns - before.mono_ns)) / 1e9
        if abs(moved) > CLOCK_TOLERANCE_S:
            found.append((after.time_ns, moved))
    return found


def jump_seconds(observation: Observation) -> float:
    """Return by how much the clock jumped, as the runner noted it; 0 when it did not say."""
    seconds = observation.data.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def spoiled(gathered: Gathered) -> str | None:
    """Return why no game day with this evidence can pass, wherever on the timeline it happened."""
    if gathered.problems:
        return f"The evidence is incomplete: {'; '.join(gathered.problems)}."
    moved = jumps(gathered.timeline)
    if moved:
        return f"The wall clock jumped by {moved[0][1]:+.1f} s."
    lost = [o for o in gathered.timeline if o.kind == "lost"]
    if lost:
        return _loss(lost[0])
    kinds = {o.kind for o in gathered.timeline}
    if not {"run_started", "run_finished"} <= kinds:
        return "The timeline does not hold the whole game day from its start to its end."
    return None


def _complete(case: Case) -> Check:
    problems = case.gathered.problems
    if problems:
        return Check(name="evidence", passed=None, detail=f"Incomplete: {'; '.join(problems)}.")
    return Check(name="evidence", passed=True, detail="Every file is there and can be read.")


def _loss(observation: Observation) -> str:
    what = observation.data.get("what", "a part")
    reason = observation.data.get("reason", "no reason given")
    return f"Lost: {what} ({reason})."


def _target(case: Case) -> Check:
    """Whether the target on the timeline is the one that the plan names."""
    planned = case.experiment.target
    for name, wanted in (("node", planned.node), ("rank", planned.rank)):
        hit = case.fact("target", name)
        if wanted is not None and hit is not None and hit != wanted:
            detail = f"The plan aims at {name} {wanted}, the timeline at {name} {hit}."
            return Check(name="target", passed=None, detail=detail)
    return Check(name="target", passed=True, detail="The target is the one that was planned.")


def _nothing_lost(case: Case) -> Check:
    # What is lost stays lost: it spoils every experiment that was not over by then.
    lost = [
        o
        for o in case.gathered.timeline
        if o.kind == "lost" and (o.time_ns <= case.end_ns or o.experiment == case.experiment.name)
    ]
    if lost:
        return Check(name="parts", passed=None, detail=_loss(lost[0]))
    return Check(name="parts", passed=True, detail="No part was lost.")


def _clock(case: Case) -> Check:
    inside = [
        seconds
        for moment, seconds in jumps(case.gathered.timeline)
        if case.begin_ns <= moment <= case.end_ns
    ]
    named = [
        o
        for o in case.gathered.timeline
        if o.kind == "clock_jump" and o.experiment == case.experiment.name
    ]
    if inside or named:
        seconds = inside[0] if inside else jump_seconds(named[0])
        detail = f"The wall clock jumped by {seconds:+.1f} s."
        return Check(name="clock", passed=None, detail=detail)
    detail = "Wall and monotonic clock agree."
    return Check(name="clock", passed=True, detail=detail)


def _prometheus(case: Case) -> Check:
    begin, end = case.injected_ns, case.end_ns
    name = "prometheus"
    if begin is None:
        return Check(name=name, passed=None, detail="Nothing was injected.")
    silent = [
        query
        for query, result in sorted(case.gathered.queries.items())
        if "ALERTS" not in result.query
        and not any(begin / 1e9 <= moment <= end / 1e9 for moment in _moments(result))
    ]
    if silent:
        detail = f"No samples during the experiment: {', '.join(silent)}."
        return Check(name=name, passed=None, detail=detail)
    detail = f"All {len(case.gathered.queries)} queries have samples."
    return Check(name=name, passed=True, detail=detail)


def _moments(result: QueryResult) -> Iterator[float]:
    """Yield the times of a result's samples, in Unix seconds; what is no sample is none."""
    for series in result.series:
        values = series.get("values")
        for sample in values if isinstance(values, list) else []:
            if isinstance(sample, list) and sample and isinstance(sample[0], int | float):
                yield float(sample[0])
