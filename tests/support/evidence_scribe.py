"""What the runner, the receiver and Prometheus of the made-up game day wrote down."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from support.evidence_edits import write_lines, write_steplog
from support.evidence_job import MONO_OFFSET_NS, NODES, RUN, WORKLOAD, Job
from tailwatch.evidence import (
    Delivery,
    Experiment,
    LedgerEntry,
    Observation,
    ObservationKind,
    Plan,
    QueryResult,
)
from tailwatch.records import event_line
from tailwatch.verdicts import rfc3339

NEVER = "0001-01-01T00:00:00Z"


class Scribe:
    """Writes down what the runner of the made-up game day would have seen."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self.job = job
        self.plan = plan
        self.timeline: list[Observation] = []
        self.ledger: list[LedgerEntry] = []
        self.deliveries: list[Delivery] = []
        self.firing: list[tuple[float, float, dict[str, str]]] = []

    def see(
        self, kind: ObservationKind, experiment: Experiment | None = None, **data: Any
    ) -> Observation:
        """Note an observation now; each takes a millisecond."""
        self.job.pause(0.001)
        observation = Observation(
            time_ns=self.job.now_ns,
            mono_ns=self.job.now_ns - MONO_OFFSET_NS,
            kind=kind,
            experiment=experiment.name if experiment else None,
            data=data,
        )
        self.timeline.append(observation)
        return observation

    def note(self, experiment: Experiment, undo: str, state: Any, **arguments: Any) -> str:
        """Write a state of the experiment's ledger entry and return its id."""
        entry = LedgerEntry(
            id=f"{experiment.name}-1",
            experiment=experiment.name,
            undo=undo,
            arguments=arguments,
            state=state,
            time_ns=self.job.now_ns,
        )
        self.ledger.append(entry)
        return entry.id

    def alert(
        self, name: str, fired_ns: int, resolved_ns: int, labels: dict[str, str] | None = None
    ) -> None:
        """Deliver an alert that fires and resolves at the given wall times, 0.3 s later each."""
        full = {"alertname": name, "run": RUN, "workload": WORKLOAD, "severity": "page"}
        full |= {"team": "training", **(labels or {})}
        self.firing.append((fired_ns / 1e9, resolved_ns / 1e9, full))
        for status, received in (("firing", fired_ns), ("resolved", resolved_ns)):
            ends = rfc3339(resolved_ns) if status == "resolved" else NEVER
            body = webhook_body(full, status, rfc3339(fired_ns), ends)
            delivery = Delivery(received_ns=received + 300_000_000, body=body)
            self.deliveries.append(delivery)


def webhook_body(labels: dict[str, str], status: str, starts: str, ends: str) -> str:
    """The body that Alertmanager posts for a group of one alert (webhook format 4)."""
    annotations = {
        "summary": f"{labels['alertname']} of {labels['run']}",
        "description": "Seen by the job agent.",
        "runbook_url": f"https://runbooks.example/{labels['alertname']}",
    }
    key = "".join(f"{k}={v}," for k, v in sorted(labels.items()))
    alert = {
        "status": status,
        "labels": labels,
        "annotations": annotations,
        "startsAt": starts,
        "endsAt": ends,
        "generatorURL": "http://127.0.0.1:9090/graph?g0.expr=up&g0.tab=1",
        "fingerprint": hashlib.sha256(key.encode()).hexdigest()[:16],
    }
    body = {
        "receiver": "webhook",
        "status": status,
        "alerts": [alert],
        "groupLabels": {"alertname": labels["alertname"]},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "http://127.0.0.1:9093",
        "version": "4",
        "groupKey": f'{{}}:{{alertname="{labels["alertname"]}"}}',
        "truncatedAlerts": 0,
    }
    return msgspec.json.encode(body).decode()


def write_evidence(root: Path, scribe: Scribe) -> None:
    """Write down everything as one evidence directory."""
    job = scribe.job
    (root / "attempts").mkdir(parents=True, exist_ok=True)
    (root / "steps").mkdir(exist_ok=True)
    (root / "plan.json").write_bytes(msgspec.json.format(msgspec.json.encode(scribe.plan)))
    write_lines(root / "timeline.jsonl", scribe.timeline)
    write_lines(root / "ledger.jsonl", scribe.ledger)
    scribe.deliveries.sort(key=lambda d: d.received_ns)
    write_lines(root / "webhook.jsonl", scribe.deliveries)
    job.events.sort(key=lambda e: e.time_ns)
    (root / "events.jsonl").write_bytes(b"".join(event_line(e) for e in job.events))
    for attempt in job.attempts:
        path = root / "attempts" / f"{attempt.attempt:04d}.json"
        path.write_bytes(msgspec.json.encode(attempt))
    for node in NODES:
        write_steplog(
            root / "steps" / f"{node}.steplog", [r for r in job.records if r.node == node]
        )
    (root / "queries.json").write_bytes(msgspec.json.encode(_queries(scribe)))


def _queries(scribe: Scribe) -> dict[str, QueryResult]:
    """Range queries as Prometheus would have answered them, sampled each second."""
    job = scribe.job
    labels = {"run": RUN, "workload": WORKLOAD}
    start, end = scribe.timeline[0].time_ns / 1e9, scribe.timeline[-1].time_ns / 1e9
    p99: list[list[Any]] = []
    steps: list[list[Any]] = []
    done = 0
    for moment in range(int(start) + 1, int(end) + 1):
        while done < len(job.p99) and job.p99[done][0] <= moment:
            done += 1
        if done:
            p99.append([moment, f"{job.p99[done - 1][1]:.6f}"])
            steps.append([moment, str(done)])
    firing: list[dict[str, Any]] = []
    for begins, ends, alert in scribe.firing:
        values = [[moment, "1"] for moment in range(int(begins) + 1, int(ends) + 1)]
        metric = {"__name__": "ALERTS", "alertstate": "firing", **alert}
        firing.append({"metric": metric, "values": values})

    def answer(query: str, series: list[dict[str, Any]]) -> QueryResult:
        return QueryResult(query=query, start=start, end=end, step=1.0, series=series)

    return {
        "step_p99": answer("tailwatch_job_step_p99_seconds", [{"metric": labels, "values": p99}]),
        "steps": answer("tailwatch_job_steps_total", [{"metric": labels, "values": steps}]),
        "alerts": answer('ALERTS{alertstate="firing"}', firing),
    }
