"""Xid and SXid codes as data, with the overrides of a platform.

Contract: data come from the TOML files beside this one, overrides from `overrides.toml` and then
from a file of the user's; a file that says something impossible raises UsageError with its place.
A code nobody has described is a warning to be shown to support, never nothing.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from tailwatch.agents.lines.finding import Kind, Severity
from tailwatch.errors import UsageError

_HERE = Path(__file__).parent


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One code; `per_gpu` and `by_line` as explained in `xid.toml`."""

    meaning: str
    severity: Severity
    action: str
    per_gpu: bool = False
    by_line: bool = False


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one kind of platform wants otherwise, and why."""

    platform: str
    kind: Kind
    code: str
    reason: str
    severity: Severity | None = None
    action: str | None = None


class _OverrideFile(msgspec.Struct, forbid_unknown_fields=True):
    override: list[Override] = []


UNKNOWN = Entry(
    meaning="A code that is in no catalogue", severity="warning", action="contact_support"
)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file; raise UsageError when it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{error}; expected a TOML file", source=str(path)) from error


class Overrides:
    """The overrides that hold on one platform.

    Args:
        instance_type: for example `p5.48xlarge`; None matches only the pattern `*`.
        extra: a file of the user's own.
    """

    def __init__(self, instance_type: str | None, extra: Path | None = None) -> None:
        self._found: dict[tuple[str, str], Override] = {}
        for path in (_HERE / "overrides.toml", *([extra] if extra else [])):
            try:
                content = msgspec.convert(read_toml(path), _OverrideFile)
            except msgspec.ValidationError as error:
                raise UsageError(str(error), source=str(path)) from error
            for override in content.override:
                if fnmatch.fnmatchcase(instance_type or "", override.platform):
                    self._found[override.kind, override.code] = override

    def apply(self, kind: Kind, code: str, entry: Entry) -> Entry:
        """Return the entry as this platform wants it."""
        found = self._found.get((kind, code))
        if found is None:
            return entry
        return msgspec.structs.replace(
            entry,
            severity=found.severity or entry.severity,
            action=found.action or entry.action,
            by_line=entry.by_line and found.severity is None,
        )


def load_codes(kind: Kind, overrides: Overrides) -> Mapping[str, Entry]:
    """Return the entries of `xid` or `sxid` by code."""
    path = _HERE / f"{kind}.toml"
    found = msgspec.convert(read_toml(path), dict[str, Entry])
    return {code: overrides.apply(kind, code, entry) for code, entry in found.items()}
