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
from tailwatch.agents.service import log
from tailwatch.records import Record
from tailwatch.ring import RingReader, TornRing, ring_name
from tailwatch.steplog import StepLog, payloads

REMOVE_SECONDS = 30.0


class _Origin(msgspec.Struct):
    """The few fields of a record that say which ring it came from."""

    run: str
    attempt: int
    rank: int | None = None


_origin = msgspec.msgpack.Decoder(_Origin).decode


class OpenRing:
    """A ring that is being read."""

    def __init__(self, path: Path) -> None:
        # Before opening: if the file is replaced in between, the next scan sees that it was.
        self.inode = path.stat().st_ino
        self.reader = RingReader(path)
        self.quiet_from = time.monotonic()
        self.superseded_since: float | None = None
        self.lost_before = 0
        self.first_read = True

    def quiet_since(self, moment: float) -> bool:
        """Whether it has been superseded and empty since `moment` (monotonic seconds)."""
        since = self.superseded_since
        return since is not None and max(since, self.quiet_from) <= moment

    @property
    def lost(self) -> int:
        """Records that nobody will ever read."""
        return self.reader.lost - self.lost_before


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
        rings: the rings being read, by file name.
        broken: what is wrong with files that are no rings, by file name.
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
        self._logged = Logged(log_path, {path.name for path in directory.glob("*.ring")})
        self.log = StepLog(log_path)
        for begin, end in self.log.damaged.items():
            log(f"{log_path}: damaged from {begin} to {end}; what was there is lost")
        self.rings: dict[str, OpenRing] = {}
        self.broken: dict[str, str] = {}
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
        present = {path.name: path for path in self._directory.glob("*.ring")}
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
        for name, path in sorted(present.items()):
            try:
                if name not in self.rings:
                    self.rings[name] = OpenRing(path)
                    self.broken.pop(name, None)
            except FileNotFoundError:
                continue
            except (TornRing, OSError) as error:
                self._note_broken(name, str(error))
        self._remove_superseded()

    def drain(self) -> int:
        """Log what is new and return how many records that was; raise OSError if it cannot be."""
        self._write()
        for name, ring in list(self.rings.items()):
            try:
                numbered = ring.reader.read_numbered()
            except OSError as error:
                self._note_broken(name, str(error))
                continue
            if ring.first_read:
                numbered = self._unlogged(name, ring, numbered)
            for _, payload in numbered:
                found = check(payload, ring.reader, self._node)
                if isinstance(found, str):
                    self._note_rejected(name, found)
                else:
                    self._unwritten.append((payload, found, ring))
            if numbered:
                ring.quiet_from = time.monotonic()
        return self._write()

    def _unlogged(
        self, name: str, ring: OpenRing, numbered: list[tuple[int, bytes]]
    ) -> list[tuple[int, bytes]]:
        """Return what a ring holds and the log does not, on the first reading of that ring."""
        ring.first_read = False
        if numbered:
            # What lies before the oldest record was logged, or lost, before we came.
            oldest, payload = numbered[0]
            before = oldest - 1
            accounted = before if self._logged.holds(payload) else self._logged.count(name)
            ring.lost_before = min(before, accounted)
        return [(s, payload) for s, payload in numbered if not self._logged.holds(payload)]

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
            self._lost_closed += ring.lost
            ring.reader.close()

    def _remove_superseded(self) -> None:
        newest = self.newest_attempts()
        now = time.monotonic()
        for ring in self.rings.values():
            if ring.reader.attempt < newest[ring.reader.run] and ring.superseded_since is None:
                ring.superseded_since = now
        due = now - self._remove_seconds
        if not any(ring.quiet_since(due) for ring in self.rings.values()):
            return
        self.drain()
        for name in [name for name, ring in self.rings.items() if ring.quiet_since(due)]:
            self._let_go(name)
            (self._directory / name).unlink(missing_ok=True)

    def newest_attempts(self) -> dict[str, int]:
        """Return the newest attempt on this node, by run."""
        newest: dict[str, int] = {}
        for ring in self.rings.values():
            run = ring.reader.run
            newest[run] = max(newest.get(run, 0), ring.reader.attempt)
        return newest

    def _note_broken(self, name: str, problem: str) -> None:
        if name in self.rings:
            self._let_go(name)
        if self.broken.get(name) != problem:
            log(f"ring {name}: {problem}")
        self.broken[name] = problem

    def _note_rejected(self, name: str, reason: Reason) -> None:
        self.rejected[reason] += 1
        if self.rejected[reason] == 1:
            log(f"ring {name}: record refused ({reason}); further ones are only counted")

    def close(self) -> None:
        """Close rings and log."""
        for name in list(self.rings):
            self._let_go(name)
        self.log.close()
