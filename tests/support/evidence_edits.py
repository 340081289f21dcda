"""Tools to change one fact in an evidence directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from support.evidence_job import MONO_OFFSET_NS, SECOND
from tailwatch.records import Record, StepRecord, encode
from tailwatch.steplog import frame, read_steplog

Edit = Callable[[dict[str, Any]], dict[str, Any] | None]


def write_lines(path: Path, items: Sequence[Any]) -> None:
    """Write one JSON object a line."""
    path.write_bytes(b"".join(msgspec.json.encode(item) + b"\n" for item in items))


def write_steplog(path: Path, records: Sequence[Record]) -> None:
    """Write a step log whole."""
    path.write_bytes(b"".join(frame(encode(record)) for record in records))


def edit_lines(path: Path, edit: Edit) -> int:
    """Pass each line of a JSON-lines file through `edit` (None drops it); return the changed."""
    before: list[dict[str, Any]] = [msgspec.json.decode(x) for x in path.read_bytes().splitlines()]
    after = [edit(msgspec.json.decode(msgspec.json.encode(item))) for item in before]
    write_lines(path, [item for item in after if item is not None])
    return sum(a != b for a, b in zip(before, after, strict=True))


def edit_records(root: Path, edit: Callable[[StepRecord], StepRecord | None]) -> int:
    """Pass each step record of all step logs through `edit` (None drops it); return the changed."""
    changed = 0
    for path in sorted((root / "steps").glob("*.steplog")):
        before = [r for r in read_steplog(path) if isinstance(r, StepRecord)]
        after = [edit(msgspec.structs.replace(record)) for record in before]
        write_steplog(path, [record for record in after if record is not None])
        changed += sum(a != b for a, b in zip(before, after, strict=True))
    return changed


def edit_deliveries(root: Path, edit: Edit) -> int:
    """Pass each alert of each webhook body through `edit` (None drops the delivery)."""

    def line(delivery: dict[str, Any]) -> dict[str, Any] | None:
        body = msgspec.json.decode(delivery["body"])
        alerts = [edit(alert) for alert in body["alerts"]]
        body["alerts"] = [alert for alert in alerts if alert is not None]
        if not body["alerts"]:
            return None
        return {**delivery, "body": msgspec.json.encode(body).decode()}

    return edit_lines(root / "webhook.jsonl", line)


def edit_timeline(evidence: Path, kind: str, experiment: str, **data: Any) -> None:
    """Change facts of one observation; without facts the observation is dropped."""

    def edit(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["kind"] != kind or line.get("experiment") != experiment:
            return line
        return {**line, "data": {**line.get("data", {}), **data}} if data else None

    assert edit_lines(evidence / "timeline.jsonl", edit) == 1


def edit_event(evidence: Path, kind: str, attempt: int, **changes: Any) -> None:
    """Change fields of events of one kind and attempt; without changes they are dropped."""

    def edit(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["kind"] != kind or line["attempt"] != attempt:
            return line
        return {**line, **changes} if changes else None

    assert edit_lines(evidence / "events.jsonl", edit)


def edit_attempt(evidence: Path, number: int, **changes: Any) -> None:
    """Change fields of an attempt's claim."""
    path = evidence / "attempts" / f"{number:04d}.json"
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **changes}))


def edit_alert(evidence: Path, name: str, change: Edit) -> None:
    """Pass the notifications of one alert through `change`."""

    def edit(alert: dict[str, Any]) -> dict[str, Any] | None:
        return change(alert) if alert["labels"]["alertname"] == name else alert

    assert edit_deliveries(evidence, edit)


def moment(evidence: Path, kind: str, experiment: str) -> int:
    """Return the wall time of one observation."""
    for raw in (evidence / "timeline.jsonl").read_bytes().splitlines():
        line = msgspec.json.decode(raw)
        if line["kind"] == kind and line.get("experiment") == experiment:
            return int(line["time_ns"])
    raise LookupError(kind)


def insert_after(evidence: Path, at_ns: int, **line: Any) -> None:
    """Put an observation on the timeline right after that of a moment."""
    path = evidence / "timeline.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    place = next(i for i, raw in enumerate(lines) if msgspec.json.decode(raw)["time_ns"] == at_ns)
    new = {"time_ns": at_ns, "mono_ns": at_ns - MONO_OFFSET_NS, **line}
    lines.insert(place + 1, msgspec.json.encode(new) + b"\n")
    path.write_bytes(b"".join(lines))


def cut_after(evidence: Path, kind: str, experiment: str, *ends: dict[str, Any]) -> None:
    """End the timeline after an observation, as a runner that stops there does."""
    at = moment(evidence, kind, experiment)
    edit_lines(evidence / "timeline.jsonl", lambda line: line if line["time_ns"] <= at else None)
    with (evidence / "timeline.jsonl").open("ab") as file:
        for end in (*ends, {"kind": "run_finished"}):
            moved = int(end.get("data", {}).get("seconds", 0.0) * SECOND)
            line = {"time_ns": at + moved, "mono_ns": at - MONO_OFFSET_NS, **end}
            file.write(msgspec.json.encode(line) + b"\n")
