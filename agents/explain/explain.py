"""From lines to incidents, and from incidents to the root.

Contract: every line ends in exactly one place: an incident, or `unknown_lines`. An incident has
either `cause` or `echo`, the sentence why it is one. Lines that are kept are cut and counted out
(`KEPT` per incident), so memory follows the number of incidents and not of lines.

The root is the deepest cause: hardware before host, host before set-up, a process before a hang, a
hang before a link. Where the text holds echoes alone, the root is what most of them point at.

Cost: 80 to 200 us a line.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tailwatch.agents.explain.collect import Collector, Found
from tailwatch.agents.explain.relate import relate
from tailwatch.agents.lines.finding import Severity
from tailwatch.agents.lines.messages import Messages

_ORDER: dict[str, int] = {"cause": 0, "echo": 1, "noise": 2}


class Incident(msgspec.Struct, frozen=True, omit_defaults=True):
    """What belongs together; `action` is a sentence, `lines` are those of the input."""

    kind: str
    severity: Severity
    subject: str
    action: str
    lines: list[str]
    cause: str = ""
    echo: str = ""


class Root(msgspec.Struct, frozen=True):
    """What everything else follows from; `in_text` is False when echoes only point at it."""

    kind: str
    subject: str
    action: str
    in_text: bool


class Explanation(msgspec.Struct, frozen=True):
    """What `tailwatch explain` prints: the root's incident first, noise last."""

    incidents: list[Incident]
    root: Root | None
    unknown_lines: list[str]


def explain(lines: Iterable[str]) -> Explanation:
    """Return what lines mean."""
    messages = Messages()
    collector = Collector(messages)
    for line in lines:
        collector.take(line)
    found = relate(collector.finish())
    root = _root(found)
    ordered = sorted(
        found, key=lambda one: (one is not root, _ORDER[one.role], -one.depth, one.first_line)
    )
    return Explanation(
        [_incident(one, messages) for one in ordered],
        None
        if root is None
        else Root(root.kind, root.subject, messages.actions[root.action], root.role == "cause"),
        collector.unknown,
    )


def _root(found: list[Found]) -> Found | None:
    causes = [one for one in found if one.role == "cause"]
    if causes:
        return max(causes, key=lambda one: (one.depth, -one.first_line))
    pointing = [one for one in found if one.role == "echo" and one.severity != "info"]
    return max(pointing, key=lambda one: (one.points, one.depth, -one.first_line), default=None)


def _incident(found: Found, messages: Messages) -> Incident:
    said = found.meaning if found.role != "noise" else f"Noise: {found.meaning}"
    return Incident(
        kind=found.kind,
        severity=found.severity,
        subject=found.subject,
        action=messages.actions[found.action],
        lines=found.lines,
        cause=said if found.role == "cause" else "",
        echo=said if found.role != "cause" else "",
    )
