"""Sorts lines into incidents: one per kind and subject.

Contract: `take` never raises. Blocks of several lines (a launcher's summary, a Python traceback, a
record of the fabric manager) go to one incident. No more than `KEPT` lines of an incident and
`UNKNOWN_KEPT` unknown ones are kept; after `INCIDENTS` the subjects of a kind are put together.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tailwatch.agents.explain.devices import from_kernel, from_libfabric
from tailwatch.agents.explain.launcher import FailureBlock, meaning, merged
from tailwatch.agents.explain.prefixes import Line, split
from tailwatch.agents.lines import KernelLines
from tailwatch.agents.lines.fabric_manager import RECORD, FabricManagerLines
from tailwatch.agents.lines.finding import Finding, Severity
from tailwatch.agents.lines.messages import Message, Messages, Role

KEPT = 50
INCIDENTS = 5000
UNKNOWN_KEPT = 1000
_SHOWN = 400
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):|^During handling of the above")
_BETWEEN = re.compile(r"^(?:The above exception was the direct cause|During handling of the above)")
_RANK = re.compile(
    r"^\[(?:PG[^\]]*? )?Rank (?P<rank>\d+)\]|^rank ?(?P<rank2>\d+)\b[: ]", re.IGNORECASE
)
_GROUP = re.compile(
    r"\[PG(?: ID)? (?P<id>\d+)(?: PG GUID (?P<guid>\S+?))?(?:\((?P<name>\w+)\))?"
    r" Rank (?P<rank>\d+)\]"
)


_BLOCK = Message(
    kind="launcher_summary",
    role="noise",
    severity="info",
    action="ignore",
    meaning="The frame of the launcher's summary",
)
_FABRIC_CHATTER = Message(
    kind="fabric_manager_chatter",
    role="noise",
    severity="info",
    action="ignore",
    meaning="What the fabric manager says when nothing is wrong",
)


class Found(msgspec.Struct, kw_only=True):
    """An incident while it is put together; `points` counts who names its subject."""

    kind: str
    role: Role
    severity: Severity
    subject: str
    action: str
    meaning: str
    depth: int
    first_line: int
    lines: list[str]
    rank: int | None = None
    fields: dict[str, Any] = {}
    points: int = 0


class Collector:
    """Takes lines one after the other.

    Attributes:
        unknown: lines that no rule knows.
    """

    def __init__(self, messages: Messages) -> None:
        self.unknown: list[str] = []
        self._messages = messages
        self._kernel = KernelLines()
        self._block = FailureBlock()
        self._found: dict[tuple[str, str], Found] = {}
        self._number = 0
        self._tracebacks: dict[int | None, list[str]] = {}
        self._fabric: list[str] = []

    def take(self, raw: str) -> None:
        """Sort one line."""
        self._number += 1
        line = split(raw)
        shown = raw.strip()[:_SHOWN]
        if self._in_fabric_record(raw, line, shown) or (not line.text and not line.logger):
            return
        if self._in_traceback(line, shown):
            return
        if self._block.take(line.text, shown):
            return
        if (message := self._meaning(line)) is None:
            if len(self.unknown) < UNKNOWN_KEPT:
                self.unknown.append(shown)
            return
        before = self._tracebacks.pop(line.rank, []) if line.rank in self._tracebacks else []
        self._add(message, line, [*before, shown])

    def finish(self) -> list[Found]:
        """Return all incidents, in no particular order."""
        self._end_fabric_record()
        for lines in self._tracebacks.values():
            self.unknown.extend(lines[: UNKNOWN_KEPT - len(self.unknown)])
        if self._block.borders:
            self._put(_BLOCK, "launcher", None, self._block.borders)
        for failure in merged(self._block.failures):
            if failure.code is None:
                self.unknown.extend(failure.lines[: UNKNOWN_KEPT - len(self.unknown)])
                continue
            said = meaning(failure)
            inner = self._inner(failure.traceback)
            if inner is not None and said.kind == "process_failed":
                said = msgspec.structs.replace(
                    inner, role=said.role, depth=said.depth + 1 if said.depth else 0, subject=""
                )
            rank = failure.rank
            subject = f"rank {rank}" if rank is not None else f"local rank {failure.local_rank}"
            if rank is None and failure.local_rank is None:
                subject = f"pid {failure.pid}"
            found = self._put(said, subject, rank, failure.lines)
            found.fields |= {"pid": str(failure.pid), "code": failure.code, "exit": True}
        return list(self._found.values())

    def _inner(self, traceback: str) -> Message | None:
        for text in reversed(traceback.splitlines()):
            message = self._messages.match(text.strip())
            if message is not None and message.role != "noise":
                return message
        return None

    # Blocks.

    def _in_traceback(self, line: Line, shown: str) -> bool:
        if _TRACEBACK.match(line.text) or _BETWEEN.match(line.text):
            self._tracebacks.setdefault(line.rank, []).append(shown)
            return True
        lines = self._tracebacks.get(line.rank)
        if lines is None or not line.indented:
            return False
        if len(lines) < KEPT:
            lines.append(shown)
        return True

    def _in_fabric_record(self, raw: str, line: Line, shown: str) -> bool:
        if RECORD.match(raw):
            self._end_fabric_record()
            self._fabric = [raw]
            return True
        if self._fabric and line.text.startswith("Message payload details"):
            self._fabric.append(raw)
            return True
        self._end_fabric_record()
        return False

    def _end_fabric_record(self) -> None:
        record, self._fabric = self._fabric, []
        if not record:
            return
        found = _of_fabric_manager(record)
        level = RECORD.match(record[0])
        shown = [text.strip()[:_SHOWN] for text in record]
        if found is not None:
            self._add(from_kernel(found), Line(record[0]), shown)
        elif level is not None and level["level"] in ("ERROR", "FATAL", "CRITICAL"):
            self.unknown.extend(shown[: UNKNOWN_KEPT - len(self.unknown)])
        else:
            self._add(_FABRIC_CHATTER, Line(record[0]), shown)

    # One line.

    def _meaning(self, line: Line) -> Message | None:
        if (finding := self._kernel.match(line.text)) is not None:
            return from_kernel(finding)
        if (finding := _of_fabric_manager([line.text])) is not None:
            return from_kernel(finding)
        if (message := from_libfabric(line.text)) is not None:
            return message
        return self._messages.match(line.text) or self._by_logger(line)

    def _by_logger(self, line: Line) -> Message | None:
        if not line.logger:
            return None
        message = self._messages.match(f"{line.logger}]")
        return message if message is not None and message.role == "noise" else None

    def _add(self, message: Message, line: Line, lines: list[str]) -> None:
        named = _RANK.match(line.text)
        group = _GROUP.search(line.text)
        rank = line.rank
        fields: dict[str, Any] = dict(message.fields)
        if group is not None:
            fields["group"] = group["guid"] or group["id"]
            main = fields["group"] == "0" or group["name"] == "default_pg"
            if rank is None and main:
                rank = int(group["rank"])
        elif rank is None and named is not None:
            rank = int(named["rank"] or named["rank2"])
        subject = _subject(message, rank, line.host, fields)
        if not subject and group is not None:
            subject = f"rank {group['rank']} of group {fields['group']}"
        found = self._put(message, subject, rank, lines)
        found.fields = fields | found.fields
        if message.role == "echo" and "peer" in message.fields:
            found.points += 1

    def _put(self, message: Message, subject: str, rank: int | None, lines: list[str]) -> Found:
        if len(self._found) >= INCIDENTS and (message.kind, subject) not in self._found:
            subject = "others"
        found = self._found.get((message.kind, subject))
        if found is None:
            found = Found(
                kind=message.kind,
                role=message.role,
                severity=message.severity,
                subject=subject,
                action=message.action,
                meaning=message.meaning,
                depth=message.depth,
                first_line=self._number,
                lines=[],
                rank=rank,
            )
            self._found[message.kind, subject] = found
        found.lines += lines[: KEPT - len(found.lines)]
        return found


def _of_fabric_manager(record: list[str]) -> Finding | None:
    """Return what the lines of one record mean, None for nothing."""
    lines = FabricManagerLines()
    return next((found for line in record if (found := lines.match(line)) is not None), None)


def _subject(message: Message, rank: int | None, host: str, fields: dict[str, Any]) -> str:
    whose = f"rank {rank}" if rank is not None else host
    if message.role == "noise" and not message.subject:
        return ""
    values = {"rank": whose, "host": host, "on_host": f" on {host}" if host else ""}
    if not message.subject:
        return whose
    parts = re.findall(r"\{(\w+)\}", message.subject)
    known = {part: str(fields.get(part) or values.get(part, "")) for part in parts}
    if message.subject.startswith(("peer {", "store at {", "rank {")) and not any(known.values()):
        return whose
    filled = re.sub(r"\{(\w+)\}", lambda m: known[m[1]], message.subject)
    # A part that nothing filled: `process  (pid )`, `peer 192.0.2.7:`, `gpu of`.
    filled = re.sub(r" ?\((?:pid )?\)|:$", "", " ".join(filled.split()))
    return re.sub(r" (?:of|at|and peer)$| of$", "", filled)
