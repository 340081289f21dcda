"""The baseline window and its p99, recomputed from the step log.

Contract: what the timeline says about the window is believed only as far as which steps it holds;
their times are read again from the ranks' records.
"""

from __future__ import annotations

from tailwatch.chaos.judge.case import Baseline
from tailwatch.chaos.judge.gathered import Gathered
from tailwatch.evidence import Criteria, Observation
from tailwatch.jobsteps import durations
from tailwatch.statistics import quantile_bounds
from tailwatch.verdicts import Check

NAME = "baseline"


def read_baseline(gathered: Gathered, before_ns: int | None = None) -> Baseline | None:
    """Return the last baseline on the timeline (before a moment), or None when there is none."""
    moments = [
        o
        for o in gathered.timeline
        if o.kind == "baseline" and (before_ns is None or o.time_ns <= before_ns)
    ]
    if not moments:
        return None
    data = moments[-1].data
    try:
        first, last = int(data["first_step"]), int(data["last_step"])
        attempt, configuration = int(data["attempt"]), str(data["configuration"])
    except (KeyError, TypeError, ValueError):
        return None
    steps = [
        step
        for step in gathered.steps
        if step.attempt == attempt
        and first <= step.step <= last
        and step.comparable
        and step.configuration == configuration
    ]
    return Baseline(
        noted_ns=moments[-1].time_ns,
        attempt=attempt,
        first_step=first,
        last_step=last,
        configuration=configuration,
        steps=steps,
        bounds=quantile_bounds(durations(steps)),
    )


def baseline_check(gathered: Gathered, baseline: Baseline | None, criteria: Criteria) -> Check:
    """Whether the baseline carries an upper bound; None when its records are not all there."""
    if baseline is None:
        return _without(gathered.timeline)
    bounds = baseline.bounds
    planned = baseline.last_step - baseline.first_step + 1
    found = f"{bounds.n} of {planned} steps ({baseline.first_step} to {baseline.last_step})"
    if bounds.n_eff >= criteria.n_eff and bounds.upper is not None:
        detail = (
            f"{found} of {baseline.configuration}: p99 {bounds.estimate:.4f} s, at most "
            f"{bounds.upper:.4f} s with 95 % confidence, n_eff {bounds.n_eff:.0f}."
        )
        return Check(name=NAME, passed=True, detail=detail)
    if bounds.n < planned:
        detail = f"Only {found} of the baseline have a record of every rank."
        return Check(name=NAME, passed=None, detail=detail)
    detail = f"{found} of the baseline amount to n_eff {bounds.n_eff:.0f}, below {criteria.n_eff}."
    return Check(name=NAME, passed=False, detail=detail)


def _without(timeline: list[Observation]) -> Check:
    for observation in timeline:
        if observation.kind == "baseline_not_met":
            reason = str(observation.data.get("reason", "no reason given"))
            return Check(name=NAME, passed=False, detail=f"No baseline was reached: {reason}.")
    return Check(name=NAME, passed=None, detail="The timeline has no usable baseline.")
