"""Short ways to ask a judged game day."""

from __future__ import annotations

from pathlib import Path

from tailwatch.chaos.judge import judge
from tailwatch.verdicts import ExperimentOutcome, ReportDocument, Verdict


def outcome(document: ReportDocument, name: str) -> ExperimentOutcome:
    """Return the outcome of one experiment."""
    return next(e for e in document.experiments if e.name == name)


def judged(evidence: Path, name: str) -> ExperimentOutcome:
    """Judge a directory and return the outcome of one experiment."""
    return outcome(judge(evidence), name)


def verdicts(document: ReportDocument) -> list[Verdict]:
    """Return the verdicts in the order of the plan."""
    return [e.verdict for e in document.experiments]


def check(outcome: ExperimentOutcome, name: str) -> bool | None:
    """Return the answer of one check."""
    return next(c for c in outcome.checks if c.name == name).passed
