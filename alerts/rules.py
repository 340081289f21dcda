"""The alert rules, built from the catalogue.

Contract: every metric named here is in the catalogue, or building fails. All windows are multiples
of the interval at which Prometheus scrapes and evaluates, tuned at 1 s: `rules(15)` is the same set
for a cluster scraped every 15 s. The scrape jobs of the agents are named `tailwatch-...`. Every
alert has a threshold, a severity, a team, a summary, a description in readable units and a runbook.
Nothing here needs more than Prometheus 2.42.

An alert is a conjunction of clauses and not one string, so that a test can take each clause's
threshold away and see that somebody notices.
"""

from __future__ import annotations

import msgspec

from tailwatch.catalogue import metric

RUNBOOKS = "alerts/runbooks"
OWN_JOBS = "tailwatch-.*"
_JOB = "run, workload"
_RANK = "run, workload, node, rank"


class Clause(msgspec.Struct, frozen=True):
    """One condition: `expr comparison`, for example `up` and `== 0`."""

    expr: str
    comparison: str

    def __str__(self) -> str:
        return f"{self.expr} {self.comparison}".strip()


class Recording(msgspec.Struct, frozen=True):
    """A value that several clauses use, under its own name."""

    record: str
    expr: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert. Durations are seconds; `severity` is critical, warning, info or none."""

    name: str
    clauses: tuple[Clause, ...]
    hold: float = 0.0
    keep: float = 0.0
    severity: str
    team: str
    summary: str
    description: str

    @property
    def expr(self) -> str:
        """The clauses joined by `and`."""
        return "\nand\n".join(f"({clause})" for clause in self.clauses)

    @property
    def runbook(self) -> str:
        """Where its page lies, seen from the root of the project."""
        return f"{RUNBOOKS}/{self.name}.md"


class RuleSet(msgspec.Struct, frozen=True):
    """All rules of one interval."""

    interval: float
    recordings: tuple[Recording, ...]
    alerts: tuple[Alert, ...]


def duration(seconds: float) -> str:
    """Return seconds as Prometheus writes a duration."""
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


def rules(interval: float = 1.0) -> RuleSet:
    """Return the rules for a scrape and evaluation interval in seconds."""

    def window(seconds: float) -> str:
        return duration(seconds * interval)

    def m(name: str) -> str:
        return metric(f"tailwatch_{name}").name

    def job_max(expr: str) -> str:
        return f"max by ({_JOB}) ({expr})"

    late = "run_rank:tailwatch_rank_late_seconds:per_step"
    late_median = "run:tailwatch_rank_late_seconds_per_step:median"
    share = "run:tailwatch_job_steps_over_baseline:ratio"
    # Long enough for 10 steps of a loop that a fault has slowed to one a second.
    judging = window(12)
    recordings = (
        Recording(
            late,
            f"sum by ({_RANK}) (rate({m('rank_late_seconds_total')}[{window(5)}]))\n"
            f"/ on ({_JOB}) group_left ()\n"
            # No step in the window gives 0 / 0, which the comparison drops.
            f"sum by ({_JOB}) (rate({m('job_lateness_steps_total')}[{window(5)}])) >= 0",
        ),
        Recording(late_median, f"quantile by ({_JOB}) (0.5, {late})"),
        Recording(
            share,
            f"sum by ({_JOB}) (rate({m('job_steps_over_baseline_total')}[{judging}]))\n"
            f"/\nsum by ({_JOB}) (rate({m('job_steps_judged_total')}[{judging}])) >= 0",
        ),
    )
    peers = f"> on ({_JOB}) group_left ()"
    alerts = (
        Alert(
            name="RankStraggler",
            clauses=(
                Clause(late, f"{peers} (3 * {late_median})"),
                Clause(late, f"{peers} ({late_median} + 0.03)"),
            ),
            # Longer than a single hiccup, however long, stays in the window.
            hold=4 * interval,
            keep=3 * interval,
            severity="warning",
            team="training",
            summary="One rank comes late to the exchanges of its job and slows all others",
            description=(
                "Rank {{ $labels.rank }} on node {{ $labels.node }} of run {{ $labels.run }} comes "
                "{{ $value | humanizeDuration }} later than its peers in every step."
            ),
        ),
        Alert(
            name="StepTimeP99High",
            clauses=(
                Clause(share, "> 0.2"),
                Clause(
                    f"sum by ({_JOB}) (increase({m('job_steps_judged_total')}[{judging}]))",
                    ">= 10",
                ),
            ),
            hold=interval,
            keep=2 * interval,
            severity="warning",
            team="training",
            summary="Steps take longer than the p99 of the job's own baseline",
            description=(
                "{{ $value | humanizePercentage }} of the steps of run {{ $labels.run }} are above "
                "the upper bound of the baseline's p99; 1 % would be normal."
            ),
        ),
        Alert(
            name="JobRestarted",
            clauses=(Clause(job_max(f"increase({m('job_restarts_total')}[{window(10)}])"), "> 0"),),
            severity="warning",
            team="training",
            summary="All ranks of the job started again",
            description=(
                "Run {{ $labels.run }} began a new attempt within the last "
                f"{window(10)}; the steps since its newest verified checkpoint are computed again."
            ),
        ),
        Alert(
            name="CheckpointRefused",
            clauses=(
                Clause(job_max(f"increase({m('checkpoint_refused_total')}[{window(15)}])"), "> 0"),
            ),
            severity="critical",
            team="training",
            summary="A checkpoint failed verification and was not loaded",
            description=(
                "Run {{ $labels.run }} refused a checkpoint within the last "
                f"{window(15)} and went back to an older one."
            ),
        ),
        Alert(
            name="WorldShrunk",
            clauses=(
                Clause(
                    job_max(m("job_world_size")),
                    f"< {job_max(m('job_expected_world_size'))}",
                ),
            ),
            hold=2 * interval,
            severity="warning",
            team="training",
            summary="The job runs with fewer ranks than it should have",
            description="Run {{ $labels.run }} goes on with {{ $value }} ranks.",
        ),
        Alert(
            name="JobNoProgress",
            clauses=(
                Clause(
                    f"time() - {job_max(m('job_last_step_timestamp_seconds'))}",
                    f"> {20 * interval:g}",
                ),
            ),
            severity="critical",
            team="training",
            summary="The job has not finished a step for too long",
            description=(
                "Run {{ $labels.run }} finished its last step {{ $value | humanizeDuration }} ago."
            ),
        ),
        Alert(
            name="BaselineMissing",
            clauses=(Clause(job_max(m("job_baseline_known")), "== 0"),),
            hold=10 * interval,
            severity="info",
            team="training",
            summary="Step times are not judged: their configuration has no baseline yet",
            description=(
                "Run {{ $labels.run }} has not yet had enough steps in its present configuration "
                "to know its p99; StepTimeP99High cannot fire."
            ),
        ),
        Alert(
            name="AgentDown",
            # Other targets of the same Prometheus are not ours to page about.
            clauses=(Clause(f'max by (instance) (up{{job=~"{OWN_JOBS}"}})', "== 0"),),
            hold=3 * interval,
            severity="warning",
            team="platform",
            summary="An agent does not answer; what it watches is unseen",
            description="Nothing at {{ $labels.instance }} has answered the last scrapes.",
        ),
        Alert(
            name="Watchdog",
            clauses=(Clause("vector(1)", ""),),
            severity="none",
            team="platform",
            summary="Always firing: the way from the rules to the receiver works",
            description="When this alert stops arriving, no other one arrives either.",
        ),
    )
    return RuleSet(interval, recordings, alerts)
