"""What the page draws, read from the evidence directory once: steps, ranks, faults, alerts.

Contract: `read_history` never raises for what an evidence directory lacks or holds damaged; each
gap becomes a sentence in `missing`, and what depends on it is absent. Times are seconds since the
run started; step times are those of the job (one sample a step, never one per rank).

Cost: 20,000 records in about 0.5 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.evidence import EvidenceDirectory, Observation, Plan
from tailwatch.jobsteps import JobStep, job_steps
from tailwatch.records import Event, Record, StepRecord, parse_event_line
from tailwatch.report.units import parse_time
from tailwatch.runs import Attempt
from tailwatch.steplog import read_steplog
from tailwatch.verdicts import ReportDocument

T = TypeVar("T")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """Something that lasted; `end` is None when it had no end while the run was watched."""

    name: str
    start: float
    end: float | None
    role: str = ""


@dataclass(frozen=True)
class Restart:
    """A new attempt of the job."""

    at: float
    attempt: int


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was committed, or refused."""

    at: float
    step: int | None
    refused: bool


@dataclass(frozen=True)
class Window:
    """The step times (seconds) of one window, in order of time; `name` is before|during|after."""

    name: str
    seconds: Floats


@dataclass(frozen=True)
class History:
    """One entry per job step in the first arrays; `late` is ranks x steps in seconds, NaN where
    the rank took no part."""

    steps: list[JobStep] = field(default_factory=list)
    origin: float = 0.0
    end: float = 0.0
    start: Floats = field(default_factory=lambda: np.empty(0))
    seconds: Floats = field(default_factory=lambda: np.empty(0))
    step: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    attempt: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    stage: NDArray[np.str_] = field(default_factory=lambda: np.empty(0, np.str_))
    reward: Floats = field(default_factory=lambda: np.empty(0))
    loss: Floats = field(default_factory=lambda: np.empty(0))
    ranks: list[int] = field(default_factory=list)
    nodes: dict[int, str] = field(default_factory=dict)
    late: Floats = field(default_factory=lambda: np.empty((0, 0)))
    configurations: list[str] = field(default_factory=list)
    records: int = 0
    plan: Plan | None = None
    observations: list[Observation] = field(default_factory=list)
    faults: list[Span] = field(default_factory=list)
    alerts: list[Span] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def attempt_slices(self) -> list[slice]:
        """Return the stretches of steps of one attempt, in order."""
        cuts = np.flatnonzero(np.diff(self.attempt)) + 1
        edges = [0, *cuts.tolist(), len(self.attempt)]
        return [slice(a, b) for a, b in pairwise(edges) if b > a]

    def alert_names(self) -> list[str]:
        """Return the names of the alerts that fired, in the order in which they did."""
        return list(dict.fromkeys(a.name for a in sorted(self.alerts, key=lambda a: a.start)))


def read_history(evidence: EvidenceDirectory, document: ReportDocument) -> History:
    """Return what the evidence directory and the verdict hold for drawing."""
    missing: list[str] = []
    plan = _plan(evidence.plan, missing)
    observations = _lines(evidence.timeline, msgspec.json.Decoder(Observation).decode, missing)
    events = _lines(evidence.events, parse_event_line, missing)
    records = _records(evidence.steps, missing)
    steps = job_steps(records)
    if records and not steps:
        missing.append("steps/: no step has the records of all its ranks")
    attempts = _attempts(evidence.attempts, missing)
    started = parse_time(document.started_at)
    if started is None and observations:
        started = observations[0].time_ns / 1e9
    if started is None:
        started = min((s.start_ns for s in steps), default=0) / 1e9
    last = [observations[-1].time_ns / 1e9] if observations else []
    last += [t for t in (parse_time(document.finished_at),) if t is not None]
    return History(
        origin=started,
        end=max(last, default=started) - started,
        records=len(records),
        plan=plan,
        observations=observations,
        faults=_faults(document, started),
        alerts=_alerts(document, started),
        restarts=[Restart(a.started_ns / 1e9 - started, a.attempt) for a in attempts[1:]],
        checkpoints=_checkpoints(events, started),
        missing=missing,
        steps=steps,
        **_columns(steps, records, started),
    )


def _plan(path: Path, missing: list[str]) -> Plan | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except FileNotFoundError:
        missing.append(f"{path.name}: there is none, so deadlines are not shown")
    except (msgspec.MsgspecError, OSError) as error:
        missing.append(f"{path.name}: cannot be read ({error}), so deadlines are not shown")
    return None


def _lines(path: Path, parse: Callable[[bytes], T], missing: list[str]) -> list[T]:
    """Each whole line of a file; a damaged line is left out and counted."""
    try:
        data = path.read_bytes()
    except OSError:
        missing.append(f"{path.name}: there is none")
        return []
    found: list[T] = []
    damaged = 0
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            found.append(parse(line))
        except msgspec.MsgspecError:
            damaged += 1
    if damaged:
        missing.append(f"{path.name}: {damaged} of {damaged + len(found)} lines are damaged")
    return found


def _records(steps: Path, missing: list[str]) -> list[Record]:
    paths = sorted(steps.glob("*.steplog"))
    if not paths:
        missing.append("steps/: no step log, so nothing about step times can be drawn")
    found: list[Record] = []
    for path in paths:
        try:
            records = read_steplog(path)
        except (msgspec.MsgspecError, OSError) as error:
            missing.append(f"steps/{path.name}: cannot be read ({error})")
            continue
        if not records:
            missing.append(f"steps/{path.name}: holds no whole record")
        found += records
    return found


def _attempts(directory: Path, missing: list[str]) -> list[Attempt]:
    found: list[Attempt] = []
    for path in sorted(directory.glob("[0-9]*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Attempt))
        except (msgspec.MsgspecError, OSError):
            missing.append(f"attempts/{path.name}: cannot be read")
    if not found:
        missing.append("attempts/: no attempt, so restarts are not marked in the chart")
    return found


def _faults(document: ReportDocument, origin: float) -> list[Span]:
    spans = []
    for outcome in document.experiments:
        start, end = parse_time(outcome.injected_at), parse_time(outcome.undone_at)
        if start is None:
            continue
        name = outcome.name
        if outcome.undo == "failed":
            name, end = f"{name}, not undone", None
        elif end is None and outcome.undo == "none":
            end = start
        spans.append(Span(name, start - origin, None if end is None else end - origin))
    return spans


def _alerts(document: ReportDocument, origin: float) -> list[Span]:
    spans = {}
    for outcome in document.experiments:
        for alert in outcome.alerts:
            start = parse_time(alert.fired_at) or parse_time(alert.delivered_at)
            if start is None:
                continue
            end = parse_time(alert.resolved_at)
            key = (alert.name, start, tuple(sorted(alert.labels.items())))
            spans[key] = Span(
                alert.name, start - origin, None if end is None else end - origin, alert.role
            )
    return list(spans.values())


def _checkpoints(events: list[Event], origin: float) -> list[Checkpoint]:
    return [
        Checkpoint(e.time_ns / 1e9 - origin, e.step, e.kind == "checkpoint_refused")
        for e in events
        if e.kind in ("checkpoint_committed", "checkpoint_refused")
    ]


def _columns(steps: list[JobStep], records: list[Record], origin: float) -> dict[str, Any]:
    """The job steps as arrays, and who took part."""
    nodes = {r.rank: r.node for r in records if isinstance(r, StepRecord)}
    ranks = sorted(nodes)
    late = np.full((len(ranks), len(steps)), np.nan)
    rows = {rank: row for row, rank in enumerate(ranks)}
    for column, step in enumerate(steps):
        for rank, value in step.late_s.items():
            late[rows[rank], column] = value
    return {
        "start": np.array([s.start_ns / 1e9 - origin for s in steps]),
        "seconds": np.array([s.duration_s for s in steps]),
        "step": np.array([s.step for s in steps], dtype=np.int64),
        "attempt": np.array([s.attempt for s in steps], dtype=np.int64),
        "stage": np.array([s.stage for s in steps], dtype=np.str_),
        "reward": np.array([np.nan if s.reward is None else s.reward for s in steps]),
        "loss": np.array([np.nan if s.loss is None else s.loss for s in steps]),
        "ranks": ranks,
        "nodes": nodes,
        "late": late,
        "configurations": list(dict.fromkeys(s.configuration for s in steps)),
    }
