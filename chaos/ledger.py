"""The undo ledger: what to undo, written down and fsynced before anything is done.

Contract: an entry is `open` from before the injection until its undo was done. Undo actions are
named, idempotent, and need nothing but the entry's arguments, so that a guard or a later
`gameday doctor` can carry them out when the runner is dead. Undoing twice is harmless.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tailwatch import control
from tailwatch.evidence import LedgerEntry
from tailwatch.files import append_line
from tailwatch.integrity import block_digest


def _clear_order(arguments: Mapping[str, Any]) -> str:
    control.clear_fault(Path(arguments["orders"]), arguments["order"])
    return "fault order cleared"


def _restore_byte(arguments: Mapping[str, Any]) -> str:
    """Write the original byte back, but only over the very damage that was done.

    The trainer may have set the damaged checkpoint aside and written the step anew under its name.
    """
    path, offset, byte = Path(arguments["file"]), arguments["offset"], arguments["byte"]
    if not path.exists():
        return "the damaged file is set aside or gone, nothing to restore"
    if block_digest(path, arguments["block"]) == arguments["expected"]:
        return "the block is whole, nothing to restore"
    with path.open("r+b") as file:
        file.seek(offset)
        if file.read(1) != bytes([byte ^ 1]):
            return "the block is damaged, but not by this fault; left alone"
        file.seek(offset)
        file.write(bytes([byte]))
        file.flush()
        os.fsync(file.fileno())
    return "byte restored"


def _nothing(arguments: Mapping[str, Any]) -> str:
    return "nothing to undo"


# What a process that knows nothing of the experiment can undo, by the name in the ledger.
UNDO_ACTIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "clear-order": _clear_order,
    "restore-byte": _restore_byte,
    "none": _nothing,
}


class Ledger:
    """One ledger file; every write is durable before it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, experiment: str, undo: str, arguments: dict[str, Any]) -> LedgerEntry:
        """Write down how to undo what is about to be done, and return the entry."""
        entry = LedgerEntry(
            id=secrets.token_hex(6),
            experiment=experiment,
            undo=undo,
            arguments=arguments,
            state="open",
            time_ns=time.time_ns(),
        )
        self._append(entry)
        return entry

    def undo(self, entry: LedgerEntry) -> LedgerEntry:
        """Carry out the undo of an entry and write down how it went."""
        try:
            reason = UNDO_ACTIONS[entry.undo](entry.arguments)
        except (OSError, KeyError) as error:
            return self._settle(entry, "failed", f"{type(error).__name__}: {error}")
        return self._settle(entry, "undone", reason)

    def left_open(self) -> list[LedgerEntry]:
        """Return the entries whose last state is not `undone`, newest first."""
        last = {entry.id: entry for entry in read_ledger(self.path)}
        return [entry for entry in reversed(last.values()) if entry.state != "undone"]

    def _settle(self, entry: LedgerEntry, state: Any, reason: str) -> LedgerEntry:
        settled = msgspec.structs.replace(entry, state=state, reason=reason, time_ns=time.time_ns())
        try:
            self._append(settled)
        except OSError as error:
            # A full disk must not stop the other undos; the entry is tried again by a doctor.
            settled.reason += f" (could not be written down: {error})"
        return settled

    def _append(self, entry: LedgerEntry) -> None:
        append_line(self.path, msgspec.json.encode(entry) + b"\n", durable=True)


def undo_left_open(ledger: Ledger) -> list[LedgerEntry]:
    """Undo what is open, each entry for itself; return how each went."""
    return [ledger.undo(entry) for entry in ledger.left_open()]


def read_ledger(path: Path) -> list[LedgerEntry]:
    """Return all entries in order; lines that are none are left out (see `damaged_lines`).

    A last line cut by a kill was never acted upon.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    entries = []
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            entries.append(msgspec.json.decode(line, type=LedgerEntry))
    return entries


def damaged_lines(path: Path) -> int:
    """Return how many whole lines of a ledger are no entries: nobody knows what they would undo."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    return sum(line.endswith(b"\n") for line in lines) - len(read_ledger(path))
