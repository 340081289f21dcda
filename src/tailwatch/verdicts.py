"""What a game day comes to: the verdicts, their exit codes, and the shape of `report.json`.

Contract: `report.json` is a `ReportDocument`; its schema is described in docs/report.md. Times are
RFC 3339 UTC with microseconds, durations seconds as floats, unknown values null with the reason in
`reason`.
"""

from __future__ import annotations

import datetime as dt
from typing import Literal

import msgspec

Verdict = Literal[
    "PASSED", "DEVIATED", "INCONCLUSIVE", "BASELINE_NOT_MET", "ABORTED", "UNDO_FAILED"
]

EXIT_CODES: dict[Verdict, int] = {
    "PASSED": 0,
    "DEVIATED": 1,
    "INCONCLUSIVE": 3,
    "BASELINE_NOT_MET": 3,
    "ABORTED": 4,
    "UNDO_FAILED": 5,
}

# Worst first. Of two with the same exit code the one that says more wins.
SEVERITY: tuple[Verdict, ...] = (
    "UNDO_FAILED",
    "ABORTED",
    "DEVIATED",
    "BASELINE_NOT_MET",
    "INCONCLUSIVE",
    "PASSED",
)


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the verdict of several; no verdict at all is INCONCLUSIVE."""
    return min(verdicts, key=SEVERITY.index) if verdicts else "INCONCLUSIVE"


def rfc3339(time_ns: int) -> str:
    """Return wall time in nanoseconds as RFC 3339 UTC with microseconds."""
    moment = dt.datetime.fromtimestamp(time_ns // 1000 / 1e6, dt.UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Quantile(msgspec.Struct, kw_only=True):
    """A quantile with one-sided 95 % bounds from the effective sample size, in seconds.

    `upper` is None below the effective sample size that has one (299 for p99).
    """

    estimate: float | None
    lower: float | None
    upper: float | None
    n: int
    n_eff: float


class AlertOutcome(msgspec.Struct, kw_only=True):
    """One alert as the receiver got it; `expected` says which list it stood in."""

    name: str
    labels: dict[str, str]
    role: Literal["expected", "allowed", "forbidden", "unlisted"]
    fired_at: str | None
    delivered_at: str | None
    resolved_at: str | None


class RestartOutcome(msgspec.Struct, kw_only=True):
    """The restart an experiment caused."""

    attempt: int
    resumed_from_step: int | None
    newest_verified_step: int | None
    steps_lost: int | None


class Windows(msgspec.Struct, kw_only=True):
    """Step-time p99 before, during and after the fault."""

    baseline: Quantile | None
    during: Quantile | None
    after: Quantile | None


class Check(msgspec.Struct, kw_only=True):
    """One question the judge asked: the answer, and the facts in a sentence."""

    name: str
    passed: bool | None
    detail: str


class ExperimentOutcome(msgspec.Struct, kw_only=True):
    """One experiment, judged. `reason` is a sentence for people."""

    name: str
    fault: str
    hypothesis: str
    target: dict[str, str | int | None]
    verdict: Verdict
    reason: str
    injected_at: str | None
    undone_at: str | None
    undo: Literal["none", "done", "failed"]
    alerts: list[AlertOutcome]
    detection_seconds: float | None
    recovery_seconds: float | None
    restart: RestartOutcome | None
    p99: Windows | None
    checks: list[Check]


class ReportDocument(msgspec.Struct, kw_only=True):
    """The whole game day; `schema` changes only when a reader would break."""

    schema: str
    run: str
    plan: str
    verdict: Verdict
    reason: str
    started_at: str | None
    finished_at: str | None
    baseline: Quantile | None
    experiments: list[ExperimentOutcome]


SCHEMA = "tailwatch.report/1"
