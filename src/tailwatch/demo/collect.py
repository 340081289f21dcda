"""Puts what a verdict needs into the evidence directory, once the job has ended."""

from __future__ import annotations

import contextlib
import shutil

import msgspec

from tailwatch.evidence import EvidenceDirectory, QueryResult
from tailwatch.files import write_durably
from tailwatch.prometheus.query import PrometheusClient, PrometheusError
from tailwatch.runs import RunDirectory

# Prometheus refuses more than 11,000 points a series.
MOST_POINTS = 10_000

QUERIES = {
    "alerts": 'ALERTS{alertstate="firing"}',
    "step_p99_seconds": "tailwatch_job_step_p99_seconds",
    "late_seconds_per_step": (
        "sum by (node, rank) (rate(tailwatch_rank_late_seconds_total[5s]))"
        " / on () group_left () sum(rate(tailwatch_job_lateness_steps_total[5s]))"
    ),
    "world_size": "tailwatch_job_world_size",
    "restarts": "tailwatch_job_restarts_total",
    "reward": "tailwatch_job_reward",
    "up": "up",
}


def query_everything(
    client: PrometheusClient | None, evidence: EvidenceDirectory, start: float, end: float
) -> None:
    """Ask Prometheus for the whole run, mostly 1 s apart; no answer is written as an error."""
    results: dict[str, QueryResult] = {}
    broken = PrometheusError("Prometheus was never started") if client is None else None
    for name, query in QUERIES.items():
        try:
            if client is None or broken is not None:
                # One that does not answer is not asked again: its time-out is long enough once.
                raise broken or PrometheusError("not asked")
            results[name] = client.range(query, start, end, max(1.0, (end - start) / MOST_POINTS))
        except PrometheusError as error:
            broken = error
            results[name] = QueryResult(
                query=query, start=start, end=end, step=1.0, series=[], error=str(error)
            )
    with contextlib.suppress(OSError):  # a full disk; without the file the judge passes nothing
        write_durably(evidence.queries, msgspec.json.encode(results))


def copy_run(run: RunDirectory, evidence: EvidenceDirectory) -> None:
    """Copy events, attempts and step logs, so that the evidence directory stands alone."""
    if run.events.exists():
        shutil.copy2(run.events, evidence.events)
    shutil.copytree(run.attempts, evidence.attempts, dirs_exist_ok=True)
    shutil.copytree(run.steps, evidence.steps, dirs_exist_ok=True)
