"""The verdict on a terminal: one line per experiment, under the finding.

Contract: `summary_table` is plain text for a log, `print_summary` the same facts for a terminal
of any width. Neither needs the evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailwatch.report.units import (
    THIN,
    UNKNOWN,
    count,
    interval,
    milliseconds,
    sample_size,
    seconds,
    step_time,
)
from tailwatch.report.words import finding, target_words
from tailwatch.verdicts import ExperimentOutcome, Quantile, ReportDocument

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = (
    "experiment",
    "target",
    "verdict",
    "noticed",
    "recovered",
    "p99 before/during/after",
    "restart",
)
_STYLES = {
    "PASSED": "bold green",
    "DEVIATED": "bold red",
    "UNDO_FAILED": "bold red",
    "ABORTED": "bold magenta",
}


def summary_table(document: ReportDocument) -> str:
    """Return the summary as plain text, one line per experiment, without a final newline."""
    rows = [_COLUMNS, *(_cells(outcome) for outcome in document.experiments)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    head = [f"{document.verdict}  {finding(document)}", _baseline(document.baseline)]
    remarks = _remarks(document)
    return "\n".join([*head, "", *lines, *(["", *remarks] if remarks else [])])


def print_summary(document: ReportDocument, console: Console) -> None:
    """Print the summary to a terminal."""
    from rich.table import Table
    from rich.text import Text

    style = _STYLES.get(document.verdict, "bold yellow")
    console.print(Text.assemble((document.verdict, style), "  ", finding(document)))
    console.print(Text(_baseline(document.baseline), style="dim"))
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, overflow="fold")
    for outcome in document.experiments:
        cells = [Text(cell) for cell in _cells(outcome)]
        cells[2].stylize(_STYLES.get(outcome.verdict, "bold yellow"))
        table.add_row(*cells)
    console.print(table)
    for remark in _remarks(document):
        console.print(Text(remark))


def _remarks(document: ReportDocument) -> list[str]:
    """Why each experiment did not pass, and the whole where no experiment says it."""
    if document.verdict == "PASSED":
        return []
    each = [f"{o.name}: {o.reason}" for o in document.experiments if o.verdict != "PASSED"]
    return each if document.reason in (*each, "") else [document.reason, *each]


def _baseline(baseline: Quantile | None) -> str:
    if baseline is None or baseline.estimate is None:
        return "baseline p99 of a step: unknown (no baseline)"
    return (
        f"baseline p99 of a step: {step_time(baseline.estimate)} "
        f"({interval(baseline)}, {sample_size(baseline)})"
    )


def _cells(outcome: ExperimentOutcome) -> tuple[str, ...]:
    p99 = outcome.p99
    windows = (None,) * 3 if p99 is None else (p99.baseline, p99.during, p99.after)
    known = [q.estimate if q else None for q in windows]
    times = [UNKNOWN if t is None else milliseconds(t) for t in known]
    return (
        outcome.name,
        target_words(outcome),
        outcome.verdict,
        seconds(outcome.detection_seconds),
        seconds(outcome.recovery_seconds),
        f"{'/'.join(times)}{THIN}ms" if any(t is not None for t in known) else UNKNOWN,
        _restart(outcome),
    )


def _restart(outcome: ExperimentOutcome) -> str:
    restart = outcome.restart
    if restart is None:
        return "none" if outcome.injected_at is not None else "not tried"
    step = "an unknown step" if restart.resumed_from_step is None else restart.resumed_from_step
    lost = (
        "unknown loss"
        if restart.steps_lost is None
        else f"{count(restart.steps_lost, 'step')} lost"
    )
    return f"from {step}, {lost}"
