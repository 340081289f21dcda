"""Whether the step time came back, judged by counting.

Contract: of the first `recovery_steps` comparable job steps of the baseline's configuration at most
`recovery_over` may lie above the upper bound of the baseline's p99. The steps counted start after
the undo (rank-slow, node-drain) or, where nothing is undone, after the injection (rank-kill,
checkpoint-corrupt), and before the next injection. The rule holds from the moment the last of them
ended: `recovery_seconds` runs from the injection until then.
"""

from __future__ import annotations

import msgspec

from tailwatch.chaos.judge.case import Baseline, Case
from tailwatch.chaos.judge.injection import KILLS
from tailwatch.evidence import Criteria
from tailwatch.jobsteps import JobStep, durations
from tailwatch.statistics import quantile_bounds
from tailwatch.verdicts import Check, Quantile, Windows

NAME = "recovery"


class Recovery(msgspec.Struct, kw_only=True):
    """The answer, and the seconds from the injection until it could be given (if it is yes)."""

    check: Check
    seconds: float | None
    steps: list[JobStep]


def judge_recovery(case: Case, criteria: Criteria) -> Recovery:
    """Count the steps above the baseline's bound after the fault."""
    kill = case.experiment.fault in KILLS
    anchor = case.injected_ns if kill else case.at("undone")
    baseline = case.baseline
    if anchor is None or baseline is None or baseline.bounds.upper is None:
        check = Check(name=NAME, passed=None, detail="There is no undo or no baseline.")
        return Recovery(check=check, seconds=None, steps=[])
    upper = baseline.bounds.upper
    fitting = [
        step
        for step in case.steps_between(anchor, case.next_ns)
        if step.configuration == baseline.configuration
    ]
    steps = fitting[: criteria.recovery_steps]
    since = "injection" if kill else "undo"
    if len(steps) < criteria.recovery_steps:
        detail = f"Only {len(steps)} comparable steps after the {since}, {criteria.recovery_steps} "
        check = Check(name=NAME, passed=None, detail=f"{detail}are needed.")
        return Recovery(check=check, seconds=None, steps=steps)
    over = sum(step.duration_s > upper for step in steps)
    ended = steps[-1].end_ns
    limit = case.experiment.recovery_seconds
    late = (ended - anchor) / 1e9
    detail = (
        f"{over} of the first {len(steps)} steps after the {since} lie above {upper:.4f} s "
        f"(at most {criteria.recovery_over} may); they took {late:.1f} s, the deadline is "
        f"{limit:g} s."
    )
    passed = over <= criteria.recovery_over and late <= limit
    check = Check(name=NAME, passed=passed, detail=detail)
    seconds = (ended - (case.injected_ns or anchor)) / 1e9 if passed else None
    return Recovery(check=check, seconds=seconds, steps=steps)


def windows(case: Case, recovery: Recovery) -> Windows | None:
    """Return p99 before, during and after; None without a baseline.

    During: the comparable steps between injection and undo of the one configuration that has most
    of them. After: the steps that recovery counted.
    """
    baseline, begin = case.baseline, case.injected_ns
    if baseline is None:
        return None
    during: Quantile | None = None
    if begin is not None:
        during = _busiest(case.steps_between(begin, case.at("undone") or case.end_ns), baseline)
    return Windows(
        baseline=baseline.bounds,
        during=during,
        after=quantile_bounds(durations(recovery.steps)),
    )


def _busiest(steps: list[JobStep], baseline: Baseline) -> Quantile:
    counts: dict[str, int] = {}
    for step in steps:
        counts[step.configuration] = counts.get(step.configuration, 0) + 1
    most = max(counts, key=lambda name: (counts[name], name), default=baseline.configuration)
    return quantile_bounds(durations(step for step in steps if step.configuration == most))
