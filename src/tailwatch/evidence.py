"""The evidence directory of a game day: what the runner saw, for a judge that saw nothing.

Contract: everything a verdict needs lies in one directory and can be judged again offline:

    plan.json        the plan as it was run (`Plan`)
    timeline.jsonl   what the runner did and saw, one `Observation` a line, fsynced
    ledger.jsonl     the undo ledger (`LedgerEntry`), fsynced before each injection
    webhook.jsonl    one `Delivery` a line: raw bodies as received by a process of its own
    events.jsonl     the job's events
    attempts/        the attempts of the run with pids and nodes
    steps/           the node agents' step logs (`<node>.steplog`)
    queries.json     range queries to Prometheus over the whole run (`QueryResult` by name)

Nothing in it says whether a control (injection off, rule removed, undo blocked) was in force.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

FaultKind = Literal["rank-slow", "rank-kill", "checkpoint-corrupt", "node-drain"]


class Target(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Whom a fault hits. What is None is resolved at the start and frozen on the timeline."""

    node: str | None = None
    rank: int | None = None


class ExpectedAlert(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """An alert that must be *delivered* with these labels within `deadline_seconds` of injection.

    Label values may be `{node}` and `{rank}` of the resolved target. `resolved_seconds` is the
    deadline for its resolved notification, counted from the undo; None when it need not resolve.
    """

    name: str
    labels: dict[str, str] = {}
    deadline_seconds: float = 30.0
    resolved_seconds: float | None = None


class Experiment(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One fault with the hypothesis it tests. Durations are seconds."""

    name: str
    fault: FaultKind
    hypothesis: str
    target: Target = msgspec.field(default_factory=Target)
    delay_seconds: float | None = None
    hold_seconds: float = 15.0
    expected: list[ExpectedAlert]
    allowed: list[str] = []
    forbidden: list[str] = []
    reaction_seconds: float = 60.0
    recovery_seconds: float = 120.0


class Criteria(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What counts as a baseline and as recovered.

    Recovered: of the first `recovery_steps` job steps after the undo at most `recovery_over` lie
    above the baseline's upper bound of p99.
    """

    n_eff: int = 299
    baseline_seconds: float = 240.0
    recovery_steps: int = 150
    recovery_over: int = 5


class Plan(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A game day: the criteria and the experiments in the order in which they run.

    `workload` holds fields of the trainer's configuration that differ from its defaults; a game day
    against a job that runs already has none.
    """

    name: str
    workload: dict[str, Any] = {}
    criteria: Criteria = msgspec.field(default_factory=Criteria)
    experiments: list[Experiment]


ObservationKind = Literal[
    "run_started",
    "baseline",  # data: first_step, last_step, configuration, n, n_eff, p99 {estimate,lower,upper}
    "baseline_not_met",  # data: reason
    "experiment_started",
    "target",  # data: node, rank, pid, attempt, and for checkpoints step, file, offset
    "injecting",  # data: ledger (id of the entry); written after the ledger's fsync
    "injected",  # data: what was done at the target
    "injection_seen",  # data: seen (bool) and the facts it rests on
    "undoing",
    "undone",  # data: mode: "done" | "none" (nothing of ours is left to undo)
    "undo_seen",  # data: seen (bool) and the facts it rests on
    "recovered",  # data: seen (bool), first_step, steps, over
    "experiment_finished",
    "lost",  # data: what (prometheus, alertmanager, receiver, job), reason
    "clock_jump",  # data: seconds (wall minus monotonic moved by this much)
    "aborted",  # data: reason
    "run_finished",
]


class Observation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One thing the runner did or saw, at wall time `time_ns` and monotonic `mono_ns`."""

    time_ns: int
    mono_ns: int
    kind: ObservationKind
    experiment: str | None = None
    data: dict[str, Any] = {}


class LedgerEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How to undo one fault: written and fsynced before it is injected, again when undone.

    `undo` is a name in the table of undo actions (`chaos/ledger.py`), `arguments` what it needs,
    so that a process that has never heard of the experiment can do it. The last state of an `id`
    counts.
    """

    id: str
    experiment: str
    undo: str
    arguments: dict[str, Any]
    state: Literal["open", "undone", "failed"]
    time_ns: int
    reason: str = ""


class Delivery(msgspec.Struct, kw_only=True):
    """One webhook call as it came in: the raw body, undecoded, and when."""

    received_ns: int
    body: str


class QueryResult(msgspec.Struct, kw_only=True):
    """A range query: times are Unix seconds; `series` is Prometheus' own `result` list."""

    query: str
    start: float
    end: float
    step: float
    series: list[dict[str, Any]]
    error: str = ""


class EvidenceDirectory:
    """Paths inside one evidence directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan = root / "plan.json"
        self.timeline = root / "timeline.jsonl"
        self.ledger = root / "ledger.jsonl"
        self.webhook = root / "webhook.jsonl"
        self.events = root / "events.jsonl"
        self.attempts = root / "attempts"
        self.steps = root / "steps"
        self.queries = root / "queries.json"
