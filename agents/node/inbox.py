"""The way from the rings of a node into its step log, each record once.

Contract: what is in the log is never logged again, also after this process was killed at any point:
the log itself says which records of the rings that still exist it holds. What the log does not take
(disk full) stays in memory, and no ring is read further until it does, so the rings are the buffer.
A ring whose attempt is superseded on this node is removed `REMOVE_SECONDS` after it is empty.

Cost: one directory listing a scan; one pread a ring and drain when nothing is new; at start one
pass over the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tailwatch.agents.node.check import Reason, check
from tailwatch.agents.node.senders import (
    MOST_SENDERS,
    Allowance,
    Claims,
    Listing,
    OpenRing,
    superseded,
)
from tailwatch.agents.service import log
from tailwatch.records import Record
from tailwatch.ring import TornRing, ring_name
from tailwatch.steplog import StepLog, payloads

REMOVE_SECONDS = 30.0
# Broken rings are named one by one up to here; a pod can make any number of them.
MOST_NAMED = 32
_LONGEST_NAME = 160
_LOGGED_A_MINUTE = 20


class _Origin(msgspec.Struct):
    """The few fields of a record that say which ring it came from."""

    run: str
    attempt: int
    rank: int | None = None


_origin = msgspec.msgpack.Decoder(_Origin).decode


def _inode(path: Path | None) -> int | None:
    """Return the inode of a file; None when there is none to be had."""
    try:
        return path.stat().st_ino if path else None
    except OSError:
        return None


class Logged:
    """What the log holds of the rings that exist now."""

    def __init__(self, path: Path, names: set[str]) -> None:
        prefixes = {name.rsplit(".r", 1)[0] for name in names}
        self._payloads: set[int] = set()
        self._counts: dict[str, int] = {}
        self.total = 0
        if not path.exists():
            return
        for _, payload in payloads(path.read_bytes()):
            self.total += 1
            origin = _origin(payload)
            name = ring_name(origin.run, origin.attempt, origin.rank or 0)
            if name.rsplit(".r", 1)[0] in prefixes:
                self._payloads.add(hash(bytes(payload)))
                self._counts[name] = self._counts.get(name, 0) + 1

    def holds(self, payload: bytes) -> bool:
        """Whether a record of an existing ring is in the log."""
        return hash(payload) in self._payloads

    def count(self, name: str) -> int:
        """Return how many records of a ring the log holds."""
        return self._counts.get(name, 0)


class RingInbox:
    """Drains all rings of a directory into a step log.

    Args:
        directory: where the ranks of this node create their rings.
        log_path: the step log.
        node: the name of this node.
        on_record: called for each record as it is logged, with its ring.

    Attributes:
        rings: the rings being read, by sender and file name.
        broken: what is wrong with files that are no rings or not believed, likewise; the first few.
        unnamed: how many more of those there are.
        refused: files over the most that a sender may have, and senders over the most there may be.
        claims_refused: rings that spoke for a rank of another pod, each once.
        records, lost, rejected: counts since this process started.
    """

    def __init__(
        self,
        directory: Path,
        log_path: Path,
        node: str,
        on_record: Callable[[Record, OpenRing], None],
        *,
        remove_seconds: float = REMOVE_SECONDS,
    ) -> None:
        self._remove_seconds = remove_seconds
        self._directory = directory
        self._node = node
        self._on_record = on_record
        paths = Listing(directory).paths
        self._there_at_start = frozenset(paths)
        self._logged = Logged(log_path, {path.name for path in paths.values()})
        self.log = StepLog(log_path)
        for begin, end in self.log.damaged.items():
            log(f"{log_path}: damaged from {begin} to {end}; what was there is lost")
        self.rings: dict[str, OpenRing] = {}
        self.broken: dict[str, str] = {}
        self.unnamed = 0
        self.refused = 0
        self.claims_refused = 0
        self._refused: dict[str, int] = {}
        self._claims = Claims(log_path.with_suffix(".claims"))
        self._allowances: dict[str, Allowance] = {}
        self._log_from = 0.0
        self._log_left = 0
        self.records = 0
        self._lost_closed = 0
        self.rejected: dict[Reason, int] = {"unreadable": 0, "identity": 0, "value": 0}
        self._unwritten: list[tuple[bytes, Record, OpenRing]] = []

    @property
    def lost(self) -> int:
        """Records that were overwritten or damaged before they could be read."""
        return self._lost_closed + sum(ring.lost for ring in self.rings.values())

    def scan(self) -> None:
        """Open rings that are new, let go of those that are gone, remove those that are done."""
        listing = Listing(self._directory)
        present = listing.paths
        self.refused = listing.refused
        self.unnamed = 0
        for name in [n for n in self.broken if n not in present]:
            del self.broken[name]
        gone = [
            name for name, ring in self.rings.items() if _inode(present.get(name)) != ring.inode
        ]
        if gone:
            # Their files can be read as long as they are open: the last records are in there.
            self.drain()
        for name in gone:
            self._let_go(name)
        fresh: dict[str, OpenRing] = {}
        for name, path in present.items():
            try:
                if name not in self.rings:
                    fresh[name] = self._open(name, path)
            except FileNotFoundError:
                continue
            except (TornRing, OSError) as error:
                self._note_broken(name, str(error))
        self._take_up(fresh)
        self._claims.forget(listing.senders)
        self._refused = {n: inode for n, inode in self._refused.items() if n in present}
        self._remove_superseded()

    def _open(self, name: str, path: Path) -> OpenRing:
        sender = name.rpartition("/")[0]
        return OpenRing(path, sender, self._allowances.setdefault(sender, Allowance()))

    def _take_up(self, fresh: dict[str, OpenRing]) -> None:
        """Begin to read new rings, but for those that speak for somebody else's rank."""
        if not fresh:
            return
        refused = self._claims.add_all(fresh)
        for name, ring in [*self.rings.items(), *fresh.items()]:
            if ring in refused:
                self._refuse(name, ring, refused[ring])
        for name, ring in fresh.items():
            if ring not in refused:
                self.rings[name] = ring
                self.broken.pop(name, None)
        if len(self._allowances) > 2 * MOST_SENDERS:
            senders = {ring.sender for ring in self.rings.values()}
            self._allowances = {s: a for s, a in self._allowances.items() if s in senders}

    def _refuse(self, name: str, ring: OpenRing, problem: str) -> None:
        if self._refused.get(name) != ring.inode:
            self._refused[name] = ring.inode
            self.claims_refused += 1
        if name not in self.rings:
            ring.reader.close()
        self._note_broken(name, problem)

    def drain(self) -> int:
        """Log what is new and return how many records that was; raise OSError if it cannot be."""
        self._write()
        for name, ring in list(self.rings.items()):
            try:
                numbered = ring.read()
            except OSError as error:
                self._note_broken(name, str(error))
                continue
            if numbered is None:
                continue
            if ring.first_read:
                self._account(ring, numbered)
            # A ring longer than one sender's share is read in several goes, so all are looked at.
            if name in self._there_at_start:
                numbered = [n for n in numbered if not self._logged.holds(n[1])]
            for _, payload in numbered:
                found = check(payload, ring.reader, self._node)
                if isinstance(found, str):
                    self._note_rejected(name, found)
                else:
                    self._unwritten.append((payload, found, ring))
            if numbered:
                ring.quiet_from = time.monotonic()
        return self._write()

    def _account(self, ring: OpenRing, numbered: list[tuple[int, bytes]]) -> None:
        """Say on the first reading of a ring which of its records no longer count as lost."""
        ring.first_read = False
        if numbered:
            # What lies before the oldest record was logged, or lost, before we came.
            oldest, payload = numbered[0]
            before = oldest - 1
            logged = self._logged.count(ring.path.name)
            ring.lost_before = min(before, before if self._logged.holds(payload) else logged)

    def _write(self) -> int:
        if not self._unwritten:
            return 0
        self.log.append([payload for payload, _, _ in self._unwritten])
        written, self._unwritten = self._unwritten, []
        self.records += len(written)
        for _, record, ring in written:
            self._on_record(record, ring)
        return len(written)

    def _let_go(self, name: str) -> None:
        ring = self.rings.pop(name, None)
        if ring is not None:
            self._claims.drop(ring)
            self._lost_closed += ring.lost
            ring.reader.close()

    def current(self) -> list[OpenRing]:
        """Return the rings that speak for their ranks, one a rank."""
        return self._claims.speaking()

    def _remove_superseded(self) -> None:
        now = time.monotonic()
        for ring in superseded(list(self.rings.values())):
            if ring.superseded_since is None:
                ring.superseded_since = now
        due = now - self._remove_seconds
        if not any(ring.quiet_since(due) for ring in self.rings.values()):
            return
        self.drain()
        for name in [name for name, ring in self.rings.items() if ring.quiet_since(due)]:
            path = self.rings[name].path
            self._let_go(name)
            path.unlink(missing_ok=True)

    def _note_broken(self, name: str, problem: str) -> None:
        if name in self.rings:
            self._let_go(name)
        if name not in self.broken and len(self.broken) >= MOST_NAMED:
            self.unnamed += 1
            return
        problem = problem[-_LONGEST_NAME:]
        if self.broken.get(name) != problem:
            self._say(f"ring {name[:_LONGEST_NAME]!a}: {problem!a}")
        self.broken[name] = problem

    def _say(self, text: str) -> None:
        """Tell people, a few times a minute: pods can make as many faults as they like."""
        now = time.monotonic()
        if now - self._log_from >= 60.0:
            self._log_from, self._log_left = now, _LOGGED_A_MINUTE
        self._log_left -= 1
        if self._log_left >= 0:
            log(text)

    def _note_rejected(self, name: str, reason: Reason) -> None:
        self.rejected[reason] += 1
        if self.rejected[reason] == 1:
            log(f"ring {name!a}: record refused ({reason}); further ones are only counted")

    def close(self) -> None:
        """Close rings and log."""
        for name in list(self.rings):
            self._let_go(name)
        self.log.close()
