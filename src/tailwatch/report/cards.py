"""One experiment as the page shows it: the judged outcome, and the evidence around it.

Contract: numbers of the verdict are the document's own; only what the document does not hold
(p50, p95, the samples to draw) is worked out here, with the kernel's statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import msgspec

from tailwatch.evidence import Experiment, Observation
from tailwatch.report.history import History, Window
from tailwatch.report.units import bounds_note, parse_time, seconds
from tailwatch.report.windows import windows
from tailwatch.report.words import target_words, why_unknown
from tailwatch.statistics import quantile_bounds
from tailwatch.verdicts import AlertOutcome, Check, ExperimentOutcome, Quantile

_UNSHOWN_LABELS = ("alertname", "severity", "team")
_FIRST_LABELS = ("rank", "node")
_MOST_DATA = 400


@dataclass(frozen=True)
class Row:
    """A window's quantiles of step time; None, and `why`, where the window has no steps."""

    name: str
    p50: Quantile | None
    p95: Quantile | None
    p99: Quantile | None
    why: str


@dataclass(frozen=True)
class AlertRow:
    """An alert of the document with the deadline of the plan; `bad` when it should alarm."""

    outcome: AlertOutcome
    labels: list[tuple[str, str]]
    deadline: float | None
    bad: bool


@dataclass(frozen=True)
class Line:
    """One observation of the runner, short enough to read."""

    after: str
    kind: str
    data: str


@dataclass(frozen=True)
class CheckGroup:
    """The checks of one topic, each with the rest of its name."""

    topic: str
    checks: list[tuple[str, Check]]


@dataclass(frozen=True)
class Card:
    """Everything the page says about one experiment."""

    outcome: ExperimentOutcome
    target: str
    injection: str
    no_detection: str
    no_recovery: str
    no_windows: str
    windows: list[Window]
    rows: list[Row]
    notes: list[str]
    alerts: list[AlertRow]
    groups: list[CheckGroup]
    held: str
    observations: list[Line]


def card(history: History, outcome: ExperimentOutcome) -> Card:
    """Return the card of one experiment."""
    planned = None
    if history.plan is not None:
        planned = next((e for e in history.plan.experiments if e.name == outcome.name), None)
    seen = [o for o in history.observations if o.experiment == outcome.name]
    cut = windows(history, outcome)
    rows = _rows(len(history.steps), outcome, cut)
    return Card(
        outcome=outcome,
        target=_target(outcome),
        injection=_verified(seen),
        no_detection=why_unknown(outcome, "alert", "deliver", "detect", "inject"),
        no_recovery=why_unknown(outcome, "recover", "undo"),
        no_windows=_no_windows(history, outcome),
        windows=cut,
        rows=rows,
        notes=_notes(rows),
        alerts=[_alert(alert, planned) for alert in _in_order(outcome.alerts)],
        groups=_grouped(outcome.checks),
        held=_held(outcome.checks),
        observations=_log(seen, parse_time(outcome.injected_at)),
    )


def _rows(steps: int, outcome: ExperimentOutcome, cut: list[Window]) -> list[Row]:
    """p99 is the verdict's where it has one; p50 and p95 come from the samples."""
    judged = outcome.p99
    given = [None] * 3 if judged is None else [judged.baseline, judged.during, judged.after]
    rows = []
    for window, p99 in zip(cut, given, strict=True):
        p50 = p95 = None
        if len(window.seconds):
            p50 = quantile_bounds(window.seconds, 0.50)
            p95 = quantile_bounds(window.seconds, 0.95)
        if p99 is not None and p99.estimate is None:
            p99 = None
        rows.append(Row(window.name, p50, p95, p99, _why_none(steps, outcome, window.name)))
    return rows


def _notes(rows: list[Row]) -> list[str]:
    """Why a bound is missing, and whether the drawn samples are not those of the verdict."""
    note = bounds_note([(row.name, row.p99) for row in rows])
    notes = [note] if note else []
    for row in rows:
        if row.p99 is not None and row.p50 is not None and row.p99.n != row.p50.n:
            notes.append(
                f"p50 and p95 {row.name} are of n = {row.p50.n} steps in the step logs, the "
                f"verdict's p99 of n = {row.p99.n}."
            )
    return notes


def _why_none(steps: int, outcome: ExperimentOutcome, window: str) -> str:
    """Why a window may hold no step; said only where it holds none."""
    if not steps:
        return "no step log"
    if window == "before" or outcome.p99 is None:
        return "no baseline"
    if outcome.injected_at is None:
        return "nothing was injected"
    if window == "during":
        return "no whole step in it"
    return "no comparable step"


def _grouped(checks: list[Check]) -> list[CheckGroup]:
    """The checks by what stands before the colon in their names, in the judge's order.

    `alert X: delivered` is about the alerts; the first ones that stand alone are conditions.
    """
    groups: dict[str, list[tuple[str, Check]]] = {}
    for check in checks:
        topic, _, rest = (part.strip() for part in check.name.partition(":"))
        if topic.startswith("alert "):
            topic, rest = "alerts", f"{topic.removeprefix('alert ')} {rest}"
        groups.setdefault(topic, []).append((rest or topic, check))
    alone = list(takewhile(lambda topic: [n for n, _ in groups[topic]] == [topic], groups))
    conditions = [groups.pop(topic)[0] for topic in alone]
    named = [CheckGroup(topic, found) for topic, found in groups.items()]
    return [*([CheckGroup("conditions", conditions)] if conditions else []), *named]


def _held(checks: list[Check]) -> str:
    """How many checks hold, in words that do not hide an open one."""
    words = f"{sum(c.passed is True for c in checks)} of {len(checks)} hold"
    failed = sum(c.passed is False for c in checks)
    unknown = sum(c.passed is None for c in checks)
    words += f", {failed} failed" if failed else ""
    return words + (f", {unknown} unknown" if unknown else "")


def _no_windows(history: History, outcome: ExperimentOutcome) -> str:
    if not history.steps:
        return "the evidence holds no step of the job."
    if outcome.injected_at is None:
        return "the fault was never injected, and there is no baseline window."
    return "no step falls into a window of this experiment."


def _in_order(alerts: list[AlertOutcome]) -> list[AlertOutcome]:
    roles = ("forbidden", "unlisted", "expected", "allowed")
    bad_first = [a for a in alerts if a.role in roles[:2] and a.delivered_at is not None]
    rest = [a for a in alerts if a not in bad_first]
    return bad_first + sorted(rest, key=lambda a: roles.index(a.role))


def _alert(alert: AlertOutcome, planned: Experiment | None) -> AlertRow:
    deadline = None
    if planned is not None and alert.role == "expected":
        deadline = next(
            (e.deadline_seconds for e in planned.expected if e.name == alert.name), None
        )
    fired = alert.fired_at is not None or alert.delivered_at is not None
    bad = (alert.role == "expected" and alert.delivered_at is None) or (
        alert.role == "forbidden" and fired
    )
    names = [*_FIRST_LABELS, *sorted(set(alert.labels) - set(_FIRST_LABELS + _UNSHOWN_LABELS))]
    labels = [(name, alert.labels[name]) for name in names if name in alert.labels]
    return AlertRow(alert, labels, deadline, bad)


def _target(outcome: ExperimentOutcome) -> str:
    checkpoint = outcome.target.get("checkpoint_step")
    words = target_words(outcome)
    if words == "unknown":
        return "target unknown"
    return words if checkpoint is None else f"{words}, checkpoint of step {checkpoint}"


def _verified(seen: list[Observation]) -> str:
    found = next((o for o in seen if o.kind == "injection_seen"), None)
    if found is None:
        return "not verified: no observation at the target"
    if found.data.get("seen") is not True:
        return "not verified: the fault was not seen at the target"
    injected = next((o for o in seen if o.kind == "injected"), None)
    if injected is None:
        return "verified at the target"
    return f"verified at the target {seconds((found.mono_ns - injected.mono_ns) / 1e9)} later"


def _log(seen: list[Observation], injected: float | None) -> list[Line]:
    lines = []
    for o in seen:
        at = o.time_ns / 1e9
        after = "" if injected is None else f"{at - injected:+.2f} s"
        data = msgspec.json.encode(o.data).decode() if o.data else ""
        lines.append(
            Line(after, o.kind, data if len(data) <= _MOST_DATA else f"{data[:_MOST_DATA]} …")
        )
    return lines
