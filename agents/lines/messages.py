"""Rules for lines of logs that are data: what a line means, whether it is a cause or an echo.

Contract: `Messages.match` never raises and gives the first rule that matches, in the order of
`FAMILIES`. The TOML files beside this one hold the rules, each with a line that a test feeds in;
the form is explained at the top of `nccl.toml`.

Cost: about 100 us for a line that matches nothing; of longer lines `LONGEST` characters count.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from tailwatch.agents.lines.catalogue import read_toml
from tailwatch.agents.lines.finding import Severity
from tailwatch.errors import UsageError

_HERE = Path(__file__).parent
FAMILIES = ("nccl", "watchdog", "gloo", "host", "torchrun")
LONGEST = 2048
"""Characters of a line that rules look at; no message they know is longer."""

Role = Literal["cause", "echo", "noise"]


class MessageRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule; the fields are explained in `nccl.toml`."""

    kind: str
    pattern: str
    role: Role
    severity: Severity
    action: str
    meaning: str
    example: str
    depth: int = 0
    subject: str = ""
    also: str = ""
    needs: list[str] = []


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What a line means; `fields` are the named groups that matched."""

    kind: str
    role: Role
    severity: Severity
    action: str
    meaning: str
    depth: int = 0
    subject: str = ""
    fields: dict[str, str] = {}


class _RuleFile(msgspec.Struct, forbid_unknown_fields=True):
    rule: list[MessageRule]


class Messages:
    """Reads lines, one at a time.

    Attributes:
        rules: by family.
        actions: the sentence behind each action.
    """

    def __init__(self) -> None:
        self.rules = {family: _rules(family) for family in FAMILIES}
        self.actions = msgspec.convert(read_toml(_HERE / "actions.toml"), dict[str, str])
        self._compiled = [
            (rule, re.compile(rule.pattern), re.compile(rule.also) if rule.also else None)
            for family in FAMILIES
            for rule in self.rules[family]
        ]

    def match(self, text: str) -> Message | None:
        """Return what a line without prefixes means, None when no rule knows it."""
        text = text[:LONGEST]
        small = text.lower()
        for rule, pattern, also in self._compiled:
            if rule.needs and not any(word in small for word in rule.needs):
                continue
            found = pattern.search(text)
            if found is None:
                continue
            fields = _fields(found)
            if also is not None and (more := also.search(text)) is not None:
                fields |= _fields(more)
            return Message(
                kind=rule.kind,
                role=rule.role,
                severity=rule.severity,
                action=rule.action,
                meaning=rule.meaning,
                depth=rule.depth,
                subject=rule.subject,
                fields=fields,
            )
        return None


def _fields(found: re.Match[str]) -> dict[str, str]:
    """Return the groups that matched; `pid2` is another place for `pid`."""
    return {name.rstrip("0123456789"): text for name, text in found.groupdict().items() if text}


def _rules(family: str) -> list[MessageRule]:
    path = _HERE / f"{family}.toml"
    try:
        return msgspec.convert(read_toml(path), _RuleFile).rule
    except msgspec.ValidationError as error:
        raise UsageError(str(error), source=str(path)) from error
