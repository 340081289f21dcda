"""Alert notifications, read from what the webhook receiver wrote down.

Contract: reading never fails because of what came in. A line that is no `Delivery` (a receiver
killed in the middle of a write) and a body that is no Alertmanager notification are left out and
counted. Times are wall time in nanoseconds. Alertmanager repeats the alerts of a group in every
notification, so one firing alert may give several notices. Cost: one pass over the file.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Literal

import msgspec

from tailwatch.evidence import Delivery


class AlertNotice(msgspec.Struct, kw_only=True, frozen=True):
    """One alert in one delivery.

    `labels` are without `alertname`, which is `name`. `starts_at_ns` and `ends_at_ns` are
    Prometheus' own times; `ends_at_ns` is None unless `status` is resolved. `received_ns` is when
    the receiver had the whole body.
    """

    name: str
    labels: dict[str, str]
    status: Literal["firing", "resolved"]
    starts_at_ns: int
    ends_at_ns: int | None
    received_ns: int


class Notices(msgspec.Struct, kw_only=True, frozen=True):
    """All notices of a delivery log, in order of arrival, and what was left out."""

    notices: list[AlertNotice]
    deliveries: int
    foreign_bodies: int
    broken_lines: int


class _Alert(msgspec.Struct, rename="camel"):
    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    starts_at: str
    ends_at: str = ""


class _Body(msgspec.Struct):
    alerts: list[_Alert]


_body_decoder = msgspec.json.Decoder(_Body)
_delivery_decoder = msgspec.json.Decoder(Delivery)


def _nanoseconds(text: str) -> int:
    """Return an RFC 3339 time as Unix nanoseconds; datetime alone would cut it to microseconds."""
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time without a zone: {text}")
    whole = int(moment.replace(microsecond=0).timestamp())
    digits = ""
    if "." in text:
        for character in text.partition(".")[2]:
            if not character.isdigit():
                break
            digits += character
    return whole * 1_000_000_000 + int(digits[:9].ljust(9, "0"))


def _notice(alert: _Alert, received_ns: int) -> AlertNotice:
    labels = dict(alert.labels)
    return AlertNotice(
        name=labels.pop("alertname"),
        labels=labels,
        status=alert.status,
        starts_at_ns=_nanoseconds(alert.starts_at),
        ends_at_ns=_nanoseconds(alert.ends_at) if alert.status == "resolved" else None,
        received_ns=received_ns,
    )


def parse_alerts(delivery: Delivery) -> list[AlertNotice]:
    """Return the alerts of one delivery; none when its body is no Alertmanager notification."""
    try:
        body = _body_decoder.decode(delivery.body)
        return [_notice(alert, delivery.received_ns) for alert in body.alerts]
    except (msgspec.MsgspecError, KeyError, ValueError, OverflowError):
        return []


def _read(path: Path) -> tuple[list[Delivery], int]:
    """Return the deliveries in `path` and how many lines were none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    deliveries, broken = [], 0
    for line in data.splitlines():
        try:
            deliveries.append(_delivery_decoder.decode(line))
        except msgspec.MsgspecError:
            broken += 1
    return deliveries, broken


def read_deliveries(path: Path) -> list[Delivery]:
    """Return the deliveries in a receiver's log, oldest first; none when there is no log."""
    return _read(path)[0]


def read_notices(path: Path) -> Notices:
    """Return the alerts of all deliveries in a receiver's log, and how much was left out."""
    deliveries, broken = _read(path)
    notices: list[AlertNotice] = []
    foreign = 0
    for delivery in deliveries:
        found = parse_alerts(delivery)
        foreign += not found
        notices += found
    return Notices(
        notices=notices, deliveries=len(deliveries), foreign_bodies=foreign, broken_lines=broken
    )
