"""Alert notices from delivery logs, whatever stands in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailwatch.evidence import Delivery
from tailwatch.notices import parse_alerts, read_deliveries, read_notices

SECOND = 1_000_000_000
NOON = 1_767_268_800 * SECOND  # 2026-01-01T12:00:00Z


def body(**changes: Any) -> dict[str, Any]:
    """Return an Alertmanager notification with one alert, changed."""
    alert = {
        "status": "firing",
        "labels": {"alertname": "RankStraggler", "rank": "1"},
        "annotations": {},
        "startsAt": "2026-01-01T12:00:00.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": "f",
    }
    return {"version": "4", "status": "firing", "alerts": [{**alert, **changes}]}


def delivery(content: object, received_ns: int = 5) -> Delivery:
    """Return a delivery of this body."""
    return Delivery(received_ns=received_ns, body=json.dumps(content))


def test_firing() -> None:
    """A firing alert has its name, its other labels, and its start to the nanosecond."""
    (notice,) = parse_alerts(delivery(body()))
    assert (notice.name, notice.labels, notice.status) == ("RankStraggler", {"rank": "1"}, "firing")
    assert (notice.starts_at_ns, notice.ends_at_ns) == (NOON + 123_456_789, None)
    assert notice.received_ns == 5


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T12:00:00Z", 0.0),
        ("2026-01-01T12:00:00.5Z", 0.5),
        ("2026-01-01T14:00:01.25+02:00", 1.25),
    ],
)
def test_resolved(text: str, seconds: float) -> None:
    """A resolved alert has its end, in any zone and with any number of digits."""
    (notice,) = parse_alerts(delivery(body(status="resolved", endsAt=text)))
    assert notice.status == "resolved"
    assert notice.ends_at_ns == NOON + int(seconds * SECOND)


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        "alerts",
        {"alerts": [{}]},
        body(status="unknown"),
        body(labels={"rank": "1"}),
        body(labels={"alertname": 1}),
        body(startsAt="yesterday"),
        body(startsAt="2026-01-01T12:00:00"),
        body(startsAt="0000-01-01T12:00:00Z"),
    ],
)
def test_foreign_bodies(content: object) -> None:
    """A body that is no notification of Alertmanager gives no notice."""
    assert parse_alerts(delivery(content)) == []


def test_a_log_with_everything_in_it(tmp_path: Path) -> None:
    """All notices are read in order of arrival, and what was left out is counted."""
    log = tmp_path / "webhook.jsonl"
    lines = [
        msgspec.json.encode(delivery(body(), 1)),
        b"garbage",
        msgspec.json.encode(delivery({"hello": 1}, 2)),
        msgspec.json.encode(Delivery(received_ns=3, body="\u0085\u2028 not json")),
        msgspec.json.encode(delivery(body(status="resolved", endsAt="2026-01-01T12:00:01Z"), 4)),
        b'{"received_ns": 6, "bo',
    ]
    log.write_bytes(b"\n".join(lines))
    found = read_notices(log)
    assert [(n.status, n.received_ns) for n in found.notices] == [("firing", 1), ("resolved", 4)]
    assert (found.deliveries, found.foreign_bodies, found.broken_lines) == (4, 2, 2)
    assert [d.received_ns for d in read_deliveries(log)] == [1, 2, 3, 4]


def test_no_log(tmp_path: Path) -> None:
    """Without a log there is nothing, and that is no error."""
    assert read_deliveries(tmp_path / "none") == []
    assert read_notices(tmp_path / "none").deliveries == 0
