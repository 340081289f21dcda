"""One notification changed, and the verdict of its experiment changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.evidence_edits import (
    edit_alert,
    edit_lines,
    moment,
)
from support.evidence_job import RUN, SECOND, WORKLOAD
from support.evidence_scribe import NEVER, webhook_body
from support.judged import check, judged
from tailwatch.evidence import Delivery
from tailwatch.verdicts import rfc3339


def straggler(evidence: Path) -> dict[str, str]:
    """The labels of the delivered straggler."""
    raw = next(x for x in (evidence / "webhook.jsonl").read_bytes().splitlines() if b"RankStr" in x)
    (alert,) = msgspec.json.decode(msgspec.json.decode(raw)["body"])["alerts"]
    return {k: v for k, v in alert["labels"].items() if k != "alertname"}


def relabel(**labels: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A change of an alert's labels."""
    return lambda alert: {**alert, "labels": {**alert["labels"], **labels}}


def deliver(evidence: Path, name: str, starts_ns: int, ends_ns: int | None, **labels: str) -> None:
    """Let the receiver have got an alert, with its end if it has one, 0.3 s later each."""
    full = {"alertname": name, "run": RUN, "workload": WORKLOAD, **labels}
    told = [("firing", starts_ns, NEVER)]
    if ends_ns is not None:
        told.append(("resolved", ends_ns, rfc3339(ends_ns)))
    with (evidence / "webhook.jsonl").open("ab") as file:
        for status, at_ns, ends in told:
            body = webhook_body(full, status, rfc3339(starts_ns), ends)
            delivery = Delivery(received_ns=at_ns + 3 * SECOND // 10, body=body)
            file.write(msgspec.json.encode(delivery) + b"\n")


def test_an_alert_that_was_not_delivered_is_deviated(evidence: Path) -> None:
    """An expected alert that never reached the receiver deviates and is listed as missing."""
    edit_alert(evidence, "RankStraggler", lambda alert: None)
    slow = judged(evidence, "rank-slow")
    assert (slow.verdict, slow.detection_seconds) == ("DEVIATED", None)
    missing = next(alert for alert in slow.alerts if alert.name == "RankStraggler")
    assert (missing.role, missing.delivered_at) == ("expected", None)
    assert missing.labels == {"node": "node-1", "rank": "3"}


@pytest.mark.parametrize("labels", [{"rank": "2"}, {"node": "node-0"}])
def test_an_alert_that_names_another_is_deviated(evidence: Path, labels: dict[str, str]) -> None:
    """The right alert with the wrong rank or node is missing and unforeseen at once."""
    edit_alert(evidence, "RankStraggler", relabel(**labels))
    slow = judged(evidence, "rank-slow")
    assert slow.verdict == "DEVIATED"
    assert {alert.role for alert in slow.alerts if alert.name == "RankStraggler"} == {
        "expected",
        "unlisted",
    }


def test_an_alert_that_also_names_another_is_deviated(evidence: Path) -> None:
    """A second straggler beside the right one is a finding that nobody foresaw."""
    lines = (evidence / "webhook.jsonl").read_bytes().splitlines()
    first = next(raw for raw in lines if b"RankStraggler" in raw)
    other = first.replace(rb"\"rank\":\"3\"", rb"\"rank\":\"0\"")
    assert other != first
    with (evidence / "webhook.jsonl").open("ab") as file:
        file.write(other + b"\n")
    slow = judged(evidence, "rank-slow")
    assert slow.verdict == "DEVIATED"
    assert "rank=0" in slow.reason


def test_a_late_delivery_is_deviated(evidence: Path) -> None:
    """What counts is when the receiver had it, not when it began to fire."""

    def edit(line: dict[str, Any]) -> dict[str, Any]:
        if "JobRestarted" in line["body"] and '\\"firing\\"' in msgspec.json.encode(line).decode():
            line["received_ns"] += 40 * SECOND
        return line

    edit_lines(evidence / "webhook.jsonl", edit)
    kill = judged(evidence, "rank-kill")
    assert kill.verdict == "DEVIATED"
    assert "the deadline is 30 s" in kill.reason


def test_an_alert_that_does_not_resolve_is_deviated(evidence: Path) -> None:
    """An alert that stays after the undo is not what the hypothesis says."""
    edit_alert(
        evidence, "RankStraggler", lambda alert: None if alert["status"] == "resolved" else alert
    )
    slow = judged(evidence, "rank-slow")
    assert slow.verdict == "DEVIATED"
    assert check(slow, "alert RankStraggler: resolved") is False


def test_an_alert_that_may_still_resolve_is_inconclusive(evidence: Path) -> None:
    """Evidence that ends before the deadline of a resolution cannot show that it was missed."""
    edit_alert(
        evidence, "WorldShrunk", lambda alert: None if alert["status"] == "resolved" else alert
    )
    assert judged(evidence, "node-drain").verdict == "INCONCLUSIVE"


def test_a_forbidden_alert_is_deviated(evidence: Path) -> None:
    """A forbidden alert that began to fire within the experiment deviates."""
    edit_alert(evidence, "StepTimeP99High", relabel(alertname="JobNoProgress"))
    slow = judged(evidence, "rank-slow")
    assert slow.verdict == "DEVIATED"
    assert check(slow, "alerts: none forbidden") is False


def test_an_allowed_alert_changes_nothing(evidence: Path) -> None:
    """An allowed alert is listed and leaves the verdict alone."""
    drain = judged(evidence, "node-drain")
    assert drain.verdict == "PASSED"
    assert [a.role for a in drain.alerts if a.name == "BaselineMissing"] == ["allowed"]


def test_the_watchdog_says_nothing(evidence: Path) -> None:
    """The alert that always fires stands in no list and is not reported."""
    edit_alert(evidence, "BaselineMissing", relabel(alertname="Watchdog"))
    drain = judged(evidence, "node-drain")
    assert drain.verdict == "PASSED"
    assert "Watchdog" not in {alert.name for alert in drain.alerts}


def test_an_alert_that_fired_before_shows_nothing(evidence: Path) -> None:
    """An expected alert that was firing already before the injection proves nothing."""
    begin = rfc3339(1_796_119_230 * SECOND)
    edit_alert(evidence, "StepTimeP99High", lambda alert: {**alert, "startsAt": begin})
    slow = judged(evidence, "rank-slow")
    assert slow.verdict == "INCONCLUSIVE"
    assert "firing already" in slow.reason


def test_an_alert_that_gives_up_before_the_undo_is_deviated(evidence: Path) -> None:
    """A detector that falls silent while the fault is still there has not seen it go."""
    undone = moment(evidence, "undone", "rank-slow")
    end = undone - 5 * SECOND

    def edit(alert: dict[str, Any]) -> dict[str, Any]:
        return {**alert, "endsAt": rfc3339(end)} if alert["status"] == "resolved" else alert

    edit_alert(evidence, "RankStraggler", edit)
    slow = judged(evidence, "rank-slow")
    assert slow.verdict == "DEVIATED"
    assert "stopped firing 5.0 s before the undo" in slow.reason
    assert check(slow, "alert RankStraggler: resolved") is False


@pytest.mark.parametrize("name", ["rank-slow", "rank-kill"])
def test_a_forbidden_alert_that_was_there_before_is_deviated(evidence: Path, name: str) -> None:
    """What fires from 2 s before the injection through the experiment fires in it, too."""
    begin = moment(evidence, "injecting", name) - 2 * SECOND
    end = moment(evidence, "experiment_finished", name) - SECOND
    deliver(evidence, "RankStraggler", begin, end, node="node-0", rank="0")
    found = judged(evidence, name)
    assert found.verdict == "DEVIATED"
    assert "RankStraggler node=node-0 rank=0" in found.reason


def test_an_alert_that_is_over_before_the_baseline_says_nothing(evidence: Path) -> None:
    """Before the baseline nothing is judged; what ended by then belongs to no experiment."""
    begin = moment(evidence, "experiment_started", "rank-slow") - 30 * SECOND
    deliver(evidence, "RankStraggler", begin, begin + 9 * SECOND, node="node-0", rank="0")
    assert judged(evidence, "rank-slow").verdict == "PASSED"


def test_a_listed_alert_may_end_in_the_next_experiment(evidence: Path) -> None:
    """An alert that the experiment before had expected is not held against the next one."""
    end = moment(evidence, "injected", "rank-kill") + SECOND

    def edit(alert: dict[str, Any]) -> dict[str, Any]:
        return {**alert, "endsAt": rfc3339(end)} if alert["status"] == "resolved" else alert

    edit_alert(evidence, "RankStraggler", edit)
    assert judged(evidence, "rank-slow").verdict == "PASSED"
    assert judged(evidence, "rank-kill").verdict == "PASSED"


@pytest.mark.parametrize("ends", [True, False])
def test_a_listed_alert_that_stays_is_no_remainder(evidence: Path, ends: bool) -> None:
    """What fires through the next experiment and beyond fires in it, whoever had expected it."""
    end = moment(evidence, "experiment_finished", "rank-kill") + SECOND

    def edit(alert: dict[str, Any]) -> dict[str, Any] | None:
        if alert["status"] == "firing":
            return alert
        return {**alert, "endsAt": rfc3339(end)} if ends else None

    edit_alert(evidence, "RankStraggler", edit)
    kill = judged(evidence, "rank-kill")
    assert kill.verdict == "DEVIATED"
    assert check(kill, "alerts: none forbidden") is False


def test_an_alert_that_begins_anew_is_no_remainder(evidence: Path) -> None:
    """A second episode of an alert that only the experiment before had listed is a finding."""
    begin = moment(evidence, "injecting", "rank-kill") + SECOND
    deliver(evidence, "RankStraggler", begin, begin + SECOND, node="node-1", rank="3")
    assert judged(evidence, "rank-slow").verdict == "PASSED"
    assert judged(evidence, "rank-kill").verdict == "DEVIATED"


@pytest.mark.parametrize(("ends", "verdict"), [(True, "PASSED"), (False, "DEVIATED")])
def test_a_missing_baseline_is_over_once_there_is_one(
    evidence: Path, ends: bool, verdict: str
) -> None:
    """BaselineMissing of the time before may end a moment later, but it has to end."""
    noted = moment(evidence, "experiment_started", "rank-slow")
    end = noted + SECOND if ends else None
    deliver(evidence, "BaselineMissing", noted - 20 * SECOND, end)
    assert judged(evidence, "rank-slow").verdict == verdict


def test_an_end_that_was_never_sent_is_no_endless_alert(evidence: Path) -> None:
    """An alert that begins anew before its end was sent had ended by then."""
    begin = moment(evidence, "experiment_started", "node-drain") - 90 * SECOND
    place = {"node": "node-0", "rank": "9"}
    deliver(evidence, "RankStraggler", begin, None, **place)
    deliver(evidence, "RankStraggler", begin + SECOND, begin + 2 * SECOND, **place)
    assert judged(evidence, "checkpoint-corrupt").verdict == "PASSED"
    assert judged(evidence, "node-drain").verdict == "PASSED"


def test_an_end_that_was_never_sent_is_no_resolution_in_time(evidence: Path) -> None:
    """An alert of which only a later beginning tells that it had ended was not resolved by then."""
    edit_alert(
        evidence, "RankStraggler", lambda alert: None if alert["status"] == "resolved" else alert
    )
    begin = moment(evidence, "undone", "rank-slow") + 60 * SECOND
    deliver(evidence, "RankStraggler", begin, begin + SECOND, **straggler(evidence))
    slow = judged(evidence, "rank-slow")
    assert check(slow, "alert RankStraggler: resolved") is False
