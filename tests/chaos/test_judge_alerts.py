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
)
from support.evidence_job import SECOND
from support.judged import check, judged
from tailwatch.verdicts import rfc3339


def relabel(**labels: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A change of an alert's labels."""
    return lambda alert: {**alert, "labels": {**alert["labels"], **labels}}


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


FAULTS = ("rank-slow", "rank-kill", "checkpoint-corrupt", "node-drain")
