"""Writes the alert rules as the file Prometheus reads.

Contract: the same arguments give the same bytes; the file appears whole.
"""

from __future__ import annotations

import json
from pathlib import Path

from tailwatch.alerts.rules import Alert, Recording, RuleSet, duration, rules
from tailwatch.errors import UsageError
from tailwatch.files import write_durably

FILE_NAME = "tailwatch.rules.yaml"


def build(out: Path, *, run_interval: float = 1.0, omit: frozenset[str] = frozenset()) -> Path:
    """Write the rules into the directory `out` and return the file.

    Args:
        out: a directory; made when it does not exist.
        run_interval: seconds between scrapes and evaluations.
        omit: names of alerts to leave out; UsageError for a name there is not.
    """
    whole = rules(run_interval)
    unknown = omit - {alert.name for alert in whole.alerts}
    if unknown:
        raise UsageError(f"no alert {', '.join(sorted(unknown))}", source="omit")
    kept = tuple(alert for alert in whole.alerts if alert.name not in omit)
    path = out / FILE_NAME
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_durably(path, to_yaml(RuleSet(run_interval, whole.recordings, kept)).encode())
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", source=path) from error
    return path


def to_yaml(rule_set: RuleSet) -> str:
    """Return the rules as YAML."""
    lines = [
        "groups:",
        "  - name: tailwatch",
        f"    interval: {duration(rule_set.interval)}",
        "    rules:",
    ]
    for recording in rule_set.recordings:
        lines += _recording(recording)
    for alert in rule_set.alerts:
        lines += _alert(alert)
    return "\n".join(lines) + "\n"


def _recording(recording: Recording) -> list[str]:
    return [f"      - record: {recording.record}", *_expr(recording.expr)]


def _alert(alert: Alert) -> list[str]:
    lines = [f"      - alert: {alert.name}", *_expr(alert.expr)]
    if alert.hold:
        lines.append(f"        for: {duration(alert.hold)}")
    if alert.keep:
        lines.append(f"        keep_firing_for: {duration(alert.keep)}")
    lines.append("        labels:")
    lines += [f"          severity: {_text(alert.severity)}", f"          team: {alert.team}"]
    lines.append("        annotations:")
    for name, text in (
        ("summary", alert.summary),
        ("description", alert.description),
        ("runbook_url", alert.runbook),
    ):
        lines.append(f"          {name}: {_text(text)}")
    return lines


def _expr(expr: str) -> list[str]:
    return ["        expr: |-", *(f"          {line}" for line in expr.splitlines())]


def _text(text: str) -> str:
    # A JSON string is a YAML double-quoted scalar.
    return json.dumps(text)
