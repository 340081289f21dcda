"""Reading a plan, and refusing one that cannot work, with the field it fails at.

Contract: `load_plan` returns a plan that can be run or raises UsageError with file, field and what
was expected; it looks at nothing but the file.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tailwatch.errors import UsageError
from tailwatch.evidence import Experiment, Plan

DEMO_PLAN = Path(__file__).parent / "plans" / "demo.json"

MOST_SECONDS = 3600
_SECONDS = f"expected more than 0 and at most {MOST_SECONDS} s"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PLACEHOLDER = re.compile(r"\{[^}]*\}")


def load_plan(path: Path) -> Plan:
    """Return the checked plan in a JSON file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", source=path) from None
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        raise UsageError(message, source=path, place=place.strip("`.")) from None
    except msgspec.DecodeError as error:
        raise UsageError(f"is no JSON: {error}", source=path) from None
    _check(plan, path)
    return plan


def select(plan: Plan, only: str | None) -> Plan:
    """Return the plan with the one experiment called `only`, or the whole plan for None."""
    if only is None:
        return plan
    chosen = [experiment for experiment in plan.experiments if experiment.name == only]
    if not chosen:
        names = ", ".join(experiment.name for experiment in plan.experiments)
        raise UsageError(f"no experiment {only!r}, expected one of: {names}", source="--only")
    return msgspec.structs.replace(plan, experiments=chosen)


def _check(plan: Plan, path: Path) -> None:
    def need(ok: bool, place: str, message: str) -> None:
        if not ok:
            raise UsageError(message, source=path, place=place)

    criteria = plan.criteria
    good = bool(_NAME.fullmatch(plan.name))
    need(good, "name", "expected lower-case letters, digits and hyphens")
    exact = "is the size at which a p99 has an upper bound; expected 299"
    need(criteria.n_eff == 299, "criteria.n_eff", exact)
    seconds = 0 < criteria.baseline_seconds <= MOST_SECONDS
    need(seconds, "criteria.baseline_seconds", _SECONDS)
    steps = 1 <= criteria.recovery_steps <= 10_000
    need(steps, "criteria.recovery_steps", "expected 1 to 10000 steps")
    over = 0 <= criteria.recovery_over < criteria.recovery_steps
    need(over, "criteria.recovery_over", f"expected 0 to {criteria.recovery_steps - 1} steps")
    need(bool(plan.experiments), "experiments", "expected at least one experiment")
    names = [experiment.name for experiment in plan.experiments]
    for index, experiment in enumerate(plan.experiments):
        place = f"experiments[{index}]"
        need(names.count(experiment.name) == 1, f"{place}.name", "expected a name used once")
        _check_experiment(experiment, place, path)


def _check_experiment(experiment: Experiment, place: str, path: Path) -> None:
    def need(ok: bool, field: str, message: str) -> None:
        if not ok:
            raise UsageError(message, source=path, place=f"{place}.{field}")

    good = bool(_NAME.fullmatch(experiment.name))
    need(good, "name", "expected lower-case letters, digits and hyphens")
    need(bool(experiment.hypothesis.strip()), "hypothesis", "expected a sentence")
    need(bool(experiment.expected), "expected", "expected at least one alert")
    for field in ("hold_seconds", "reaction_seconds", "recovery_seconds"):
        value = getattr(experiment, field)
        need(0 < value <= MOST_SECONDS, field, f"is {value}, {_SECONDS}")
    if experiment.fault == "rank-slow":
        delay = experiment.delay_seconds
        needed = "expected 0.05 to 10 s a step for rank-slow"
        need(delay is not None and 0.05 <= delay <= 10, "delay_seconds", needed)
    else:
        need(experiment.delay_seconds is None, "delay_seconds", "only rank-slow has a delay")
    rank = experiment.target.rank
    need(rank is None or rank >= 0, "target.rank", "expected 0 or more")
    if experiment.fault == "node-drain":
        need(rank is None, "target.rank", "a drain has a node as its target")
    roles: dict[str, str] = {}
    for index, alert in enumerate(experiment.expected):
        at = f"expected[{index}]"
        need(bool(alert.name), f"{at}.name", "expected the name of an alert")
        need(0 < alert.deadline_seconds <= MOST_SECONDS, f"{at}.deadline_seconds", _SECONDS)
        resolved = alert.resolved_seconds
        fits = resolved is None or 0 < resolved <= MOST_SECONDS
        need(fits, f"{at}.resolved_seconds", _SECONDS)
        for label, value in alert.labels.items():
            need(bool(_LABEL.fullmatch(label)), f"{at}.labels", f"{label!r} is no label name")
            unknown = set(_PLACEHOLDER.findall(value)) - {"{node}", "{rank}"}
            need(not unknown, f"{at}.labels.{label}", "knows only {node} and {rank}")
        roles[alert.name] = "expected"
    for role in ("allowed", "forbidden"):
        for name in getattr(experiment, role):
            before = roles.setdefault(name, role)
            need(before == role, role, f"{name} is already {before}")
