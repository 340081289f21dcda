"""The run directory: where everything about one run lies, and how it is named.

Contract: `RunDirectory.create` never reuses a directory that holds anything. Several processes
append to `events.jsonl`, one whole line at a time. Who may start from nothing is decided by
`has_committed`: a run that ever committed a checkpoint does so only when told explicitly. It is
remembered in a file of its own, outside `checkpoints/`, so that losing those does not lose it.
"""

from __future__ import annotations

import datetime as dt
import secrets
from pathlib import Path
from typing import Any

import msgspec

from tailwatch.errors import UsageError
from tailwatch.files import append_line, write_durably
from tailwatch.records import Event, event_line, parse_event_line


class RankProcess(msgspec.Struct, kw_only=True):
    """Where a rank of an attempt runs; `start_ticks` tells a reused pid from the real one."""

    rank: int
    node: str
    pid: int
    start_ticks: int


class Attempt(msgspec.Struct, kw_only=True):
    """One start of the job: `attempts/0001.json`, claimed by rank 0 with O_EXCL."""

    attempt: int
    world_size: int
    started_ns: int
    resumed_from_step: int | None = None
    ranks: list[RankProcess] = []


def new_run_name(prefix: str = "run") -> str:
    """Return a name that sorts by time and does not repeat."""
    now = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")
    return f"{prefix}-{now}-{secrets.token_hex(2)}"


class RunDirectory:
    """Paths inside one run directory, and the few writes that several rooms share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = root / "manifest.json"
        self.attempts = root / "attempts"
        self.steps = root / "steps"
        self.events = root / "events.jsonl"
        self.orders = root / "orders"
        self.checkpoints = root / "checkpoints"
        self.committed = root / "committed.json"
        self.holder = root / ".checkpoints-holder"
        self.evidence = root / "evidence"
        self.report = root / "report"
        self.logs = root / "logs"

    @property
    def name(self) -> str:
        """The name of the run: the last part of its path."""
        return self.root.name

    @classmethod
    def create(cls, root: Path, manifest: dict[str, Any]) -> RunDirectory:
        """Make a new run directory; refuse one that already holds anything, or an awkward name.

        Prometheus takes the names of its rule files for patterns, and JSON wants UTF-8.
        """
        text = str(root)
        if not text.isprintable() or any(letter in text for letter in "*?[]\\"):
            shown = text.encode("utf-8", "backslashreplace").decode()
            raise UsageError(
                f"{shown!r}: expected a path without *, ?, [, ], \\ or control characters"
            )
        try:
            root.mkdir(parents=True, exist_ok=True)
            if any(root.iterdir()):
                raise UsageError("holds files already; a run never overwrites another", source=root)
            run = cls(root.resolve())
            for path in (run.attempts, run.steps, run.orders, run.checkpoints, run.evidence):
                path.mkdir()
            for path in (run.report, run.logs):
                path.mkdir()
            write_durably(run.manifest, msgspec.json.format(msgspec.json.encode(manifest)))
        except OSError as error:
            raise UsageError(f"cannot be written: {error.strerror}", source=root) from error
        return run

    def append_event(self, event: Event) -> None:
        """Append one event; the line is whole even when several processes append."""
        append_line(self.events, event_line(event))

    def read_events(self) -> list[Event]:
        """Return the events so far; a line cut by a kill at the very end is left out."""
        try:
            data = self.events.read_bytes()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        return [parse_event_line(line) for line in whole.splitlines() if line]

    def read_attempts(self) -> list[Attempt]:
        """Return the attempts so far, oldest first; a claim not yet filled in is left out."""
        found = []
        for path in sorted(self.attempts.glob("[0-9]*.json")):
            data = path.read_bytes()
            if data:
                found.append(msgspec.json.decode(data, type=Attempt))
        return found

    def mark_committed(self, step: int) -> None:
        """Remember, durably and for good, that a checkpoint was committed; once is enough."""
        if not self.committed.exists():
            write_durably(self.committed, msgspec.json.encode({"first_committed_step": step}))

    def has_committed(self) -> bool:
        """Whether this run ever committed a checkpoint, whatever became of it."""
        return self.committed.exists()
