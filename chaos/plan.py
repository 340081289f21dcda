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

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
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
    need(criteria.n_eff >= 299, "criteria.n_eff", "below 299 a p99 has no upper bound")
    need(criteria.baseline_seconds > 0, "criteria.baseline_seconds", "expected more than 0 s")
    need(criteria.recovery_steps >= 1, "criteria.recovery_steps", "expected at least 1 step")
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
        need(0 < value <= 3600, field, f"is {value}, expected more than 0 and at most 3600 s")
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
        need(alert.deadline_seconds > 0, f"{at}.deadline_seconds", "expected more than 0 s")
        resolved = alert.resolved_seconds
        need(resolved is None or resolved > 0, f"{at}.resolved_seconds", "expected more than 0 s")
        for label, value in alert.labels.items():
            unknown = set(_PLACEHOLDER.findall(value)) - {"{node}", "{rank}"}
            need(not unknown, f"{at}.labels.{label}", "knows only {node} and {rank}")
        roles[alert.name] = "expected"
    for role in ("allowed", "forbidden"):
        for name in getattr(experiment, role):
            before = roles.setdefault(name, role)
            need(before == role, role, f"{name} is already {before}")
