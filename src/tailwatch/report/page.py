"""The report as one HTML file that needs nothing else, not even a script to be read.

Contract: all text goes through autoescaping; the only markup that does not is the SVG that this
package draws itself, where matplotlib escapes. The same document and evidence give the same bytes.

Cost: about 3 s for 5,000 steps of 4 ranks, most of it matplotlib.
"""

from __future__ import annotations

import math
from importlib.resources import files
from typing import Any

from tailwatch.report import units
from tailwatch.report.advice import next_actions
from tailwatch.report.cards import Card, card
from tailwatch.report.ecdf_chart import ecdf_chart
from tailwatch.report.heatmap_chart import MOST_BINS, heatmap_chart
from tailwatch.report.history import History
from tailwatch.report.learning_chart import learning_chart
from tailwatch.report.timeline_chart import timeline_chart
from tailwatch.report.words import LIMITS, METHOD, finding
from tailwatch.verdicts import ReportDocument

_DISTURBANCES = {
    "lost": "Lost while it ran",
    "clock_jump": "The wall clock jumped",
    "aborted": "Ended early",
    "baseline_not_met": "No baseline",
}


def render_page(document: ReportDocument, history: History, evidence: str) -> str:
    """Return the page.

    Args:
        document: the judged game day.
        history: what the evidence directory holds.
        evidence: the evidence directory as the reader would type it.
    """
    import jinja2

    templates = files("tailwatch.report") / "templates"
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "seconds": units.seconds,
        "deadline": units.deadline,
        "step_time": units.step_time,
        "interval": units.interval,
        "clock": units.clock,
        "date_and_time": units.date_and_time,
        "after": _after,
    }
    template = environment.from_string((templates / "report.html.j2").read_text("utf-8"))
    cards = [card(history, outcome) for outcome in document.experiments]
    return template.render(
        css=environment.filters["safe"]((templates / "report.css").read_text("utf-8")),
        document=document,
        history=history,
        cards=[_with_chart(each, number) for number, each in enumerate(cards, start=1)],
        charts=_charts(document, history),
        finding=finding(document),
        duration=_duration(document),
        job=_job(history),
        tiles=_tiles(document, history),
        incidents=_incidents(history),
        no_steps="the evidence holds no step of the job, so there is no step time to draw.",
        steps_per_cell=max(1, math.ceil(len(history.steps) / MOST_BINS)),
        learning=_learning(history),
        actions=next_actions(document, evidence),
        limits=LIMITS,
        method=METHOD,
    )


def _after(time: str | None, origin: str | None) -> str:
    at, zero = units.parse_time(time), units.parse_time(origin)
    return "unknown" if at is None or zero is None else f"{at - zero:+.1f}{units.THIN}s"


def _charts(document: ReportDocument, history: History) -> dict[str, str | None]:
    if not history.steps:
        return {"timeline": None, "heatmap": None, "learning": None}
    ranked = bool(history.ranks) and any(step.late_s for step in history.steps)
    return {
        "timeline": timeline_chart(history, document.baseline),
        "heatmap": heatmap_chart(history) if ranked else None,
        "learning": learning_chart(history),
    }


def _with_chart(shown: Card, number: int) -> dict[str, Any]:
    """The card's fields for the template, with its distribution drawn."""
    drawn = [window for window in shown.windows if len(window.seconds)]
    chart = ecdf_chart(f"ecdf{number}", shown.outcome.name, drawn) if drawn else None
    return {name: getattr(shown, name) for name in shown.__dataclass_fields__} | {"ecdf": chart}


def _duration(document: ReportDocument) -> float | None:
    start, end = units.parse_time(document.started_at), units.parse_time(document.finished_at)
    return None if start is None or end is None else end - start


def _job(history: History) -> str:
    if not history.steps:
        return "unknown: no step in the evidence"
    nodes = len(set(history.nodes.values()))
    attempts = len(set(history.attempt.tolist()))
    return (
        f"{units.count(len(history.ranks), 'rank')} on {units.count(nodes, 'node')}, "
        f"{units.count(len(history.steps), 'step')}, {units.count(attempts, 'attempt')}, "
        f"{units.count(history.records, 'record')}"
    )


def _tiles(document: ReportDocument, history: History) -> list[dict[str, str]]:
    """The few numbers a reader in a hurry takes along, each with what it is the worst of."""
    outcomes = document.experiments
    injected = sum(o.injected_at is not None for o in outcomes)
    passed = sum(o.verdict == "PASSED" for o in outcomes)
    noticed = [o.detection_seconds for o in outcomes if o.detection_seconds is not None]
    recovered = [o.recovery_seconds for o in outcomes if o.recovery_seconds is not None]
    restarts = [o.restart for o in outcomes if o.restart is not None]
    lost = [r.steps_lost for r in restarts if r.steps_lost is not None]
    baseline = document.baseline
    tiles = [
        {
            "label": "Experiments passed",
            "value": f"{passed} of {len(outcomes)}",
            "note": f"{injected} of {len(outcomes)} injected, once each",
        },
        _worst("Slowest to be noticed", noticed, len(outcomes), "verified injection to delivery"),
        _worst("Slowest to recover", recovered, len(outcomes), "injection to baseline again"),
        _lost(lost, len(restarts)),
    ]
    if baseline is None or baseline.estimate is None:
        tiles.append(
            {"label": "Baseline p99", "value": "unknown", "note": "no baseline in the evidence"}
        )
    else:
        tiles.append(
            {
                "label": "Baseline p99 of a step",
                "value": units.step_time(baseline.estimate),
                "note": f"{units.interval(baseline)}, {units.sample_size(baseline)}",
            }
        )
    return tiles


def _worst(label: str, values: list[float], of: int, meaning: str) -> dict[str, str]:
    if not values:
        return {"label": label, "value": "unknown", "note": f"{meaning}: not seen in any of {of}"}
    unknown = f", {of - len(values)} unknown" if len(values) < of else ""
    return {
        "label": label,
        "value": units.seconds(max(values)),
        "note": f"{meaning}; longest of {len(values)}{unknown}",
    }


def _lost(lost: list[int], restarts: int) -> dict[str, str]:
    label = "Work lost to restarts"
    if not restarts:
        return {"label": label, "value": "none", "note": "no restart was seen"}
    if not lost:
        note = f"in {units.count(restarts, 'restart')}"
        return {"label": label, "value": "unknown", "note": note}
    unknown = f", {restarts - len(lost)} more unknown" if len(lost) < restarts else ""
    return {
        "label": label,
        "value": units.count(sum(lost), "step"),
        "note": f"in {units.count(len(lost), 'restart')}{unknown}",
    }


def _incidents(history: History) -> list[str]:
    lines = []
    for seen in history.observations:
        if seen.kind in _DISTURBANCES:
            at = units.seconds(seen.time_ns / 1e9 - history.origin)
            facts = ", ".join(f"{key}: {value}" for key, value in seen.data.items())
            lines.append(f"{_DISTURBANCES[seen.kind]}, {at} after the start: {facts or 'no facts'}")
    return lines


def _learning(history: History) -> str:
    """First and last reward, as means of the same number of steps."""
    import numpy as np

    reward = history.reward[np.isfinite(history.reward)]
    size = min(50, len(reward) // 2)
    if size < 5:
        return ""
    first, last = float(reward[:size].mean()), float(reward[-size:].mean())
    return f"Mean reward went from {first:.3f} (first {size} steps) to {last:.3f} (last {size})."
