"""Who may say what: rings by the directory they lie in, and which of them is believed.

A sender is the directory a ring lies in: one below the ring directory for each pod, which only that
pod can write to, or the ring directory itself, whose writers all count as one. (Credentials of the
doorbell say nothing: across process id namespaces they are 0.)

Contract: what a ring's header claims is taken only while no other sender holds it. A rank of a run
belongs to the sender that claimed it first. While the process that wrote there does not run (the
kernel's word, a lock on the ring, not that of a header) another may speak for the rank, but whoever
was first gets it back when he returns. An attempt supersedes older ones of its own sender, and
those of another sender only when their writers have ended. So a pod can neither speak for a rank of
another living pod nor end one, nor keep one from coming back. It can claim a rank that nobody on
this node has ever held.

Cost: one directory listing a sender and look, at most `MOST_ENTRIES` entries of it.
"""

from __future__ import annotations

import contextlib
import os
import time
from itertools import islice
from pathlib import Path

import msgspec

from tailwatch.files import write_durably
from tailwatch.ring import RingReader, TornRing, ring_name

MOST_SENDERS = 256
MOST_RINGS = 128
MOST_ENTRIES = 1024
_LONGEST_NAME = 128
_MOST_RANKS = 1 << 20
_MOST_CLAIMS = 1 << 15
# What one sender may hand in at once, and a second after that: far more than the ranks of a pod do.
BURST_RECORDS = 16_384
RECORDS_A_SECOND = 5_000.0
_SUFFIX = ".ring"


class Allowance:
    """How many records of one sender may be taken now."""

    def __init__(self) -> None:
        self._left = float(BURST_RECORDS)
        self._at = time.monotonic()

    def left(self) -> int:
        """Return the records that may be taken."""
        now = time.monotonic()
        grown = self._left + (now - self._at) * RECORDS_A_SECOND
        self._left, self._at = min(grown, float(BURST_RECORDS)), now
        return max(int(self._left), 0)

    def take(self, records: int) -> None:
        """Note that so many were taken."""
        self._left -= records


class OpenRing:
    """A ring that is being read; raises TornRing when its header cannot be true."""

    def __init__(self, path: Path, sender: str, allowance: Allowance) -> None:
        self.path = path
        self.sender = sender
        self._allowance = allowance
        self.reader = RingReader(path)
        try:
            self._refuse_impossible(path.name)
            self.inode = path.stat().st_ino
        except BaseException:
            self.reader.close()
            raise
        self.quiet_from = time.monotonic()
        self.superseded_since: float | None = None
        self.lost_before = 0
        self.first_read = True

    def _refuse_impossible(self, name: str) -> None:
        reader = self.reader
        if not (0 < len(reader.run) <= _LONGEST_NAME and reader.run.isprintable()):
            raise TornRing(f"{name}: impossible name of a run")
        if not (reader.rank < reader.world_size <= _MOST_RANKS):
            raise TornRing(f"{name}: impossible rank {reader.rank} of {reader.world_size}")
        if name != ring_name(reader.run, reader.attempt, reader.rank):
            raise TornRing(f"{name}: header of another ring")

    @property
    def rank(self) -> tuple[str, int]:
        """What it speaks for: a rank of a run."""
        return self.reader.run, self.reader.rank

    def quiet_since(self, moment: float) -> bool:
        """Whether it has been superseded and empty since `moment` (monotonic seconds)."""
        since = self.superseded_since
        return since is not None and max(since, self.quiet_from) <= moment

    @property
    def lost(self) -> int:
        """Records that nobody will ever read."""
        return self.reader.lost - self.lost_before

    def read(self) -> list[tuple[int, bytes]] | None:
        """Return its new records; None while its sender has had its share, and they wait."""
        left = self._allowance.left()
        if not left:
            return None
        found = self.reader.read_numbered(left)
        self._allowance.take(len(found))
        return found


class Listing:
    """The ring files there are now.

    Attributes:
        paths: by `<sender>/<name>`, or the name alone in the ring directory itself.
        senders: the directories there are; "" is the ring directory itself.
        refused: files and senders over the most there may be.
    """

    def __init__(self, directory: Path) -> None:
        self.paths: dict[str, Path] = {}
        self.refused = 0
        folders = sorted(self._take(directory, ""))
        self.refused += max(len(folders) - MOST_SENDERS, 0)
        for sender in folders[:MOST_SENDERS]:
            self._take(directory / sender, sender)
        self.senders = frozenset({"", *folders})

    def _take(self, directory: Path, sender: str) -> list[str]:
        """Add the rings of a directory, and return the directories in it."""
        folders: list[str] = []
        names: list[str] = []
        try:
            with os.scandir(directory) as entries:
                for entry in islice(entries, MOST_ENTRIES):
                    if entry.name.endswith(_SUFFIX):
                        names.append(entry.name)
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
        except OSError:
            return []
        self.refused += max(len(names) - MOST_RINGS, 0)
        for name in sorted(names)[:MOST_RINGS]:
            self.paths[f"{sender}/{name}" if sender else name] = directory / name
        return folders


class Claims:
    """Which sender each rank belongs to.

    Args:
        path: remembers who was first for the next process, to which all rings look equally old.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rings: dict[tuple[str, int], list[OpenRing]] = {}
        try:
            self._first = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            self._first = {}

    def add_all(self, rings: dict[str, OpenRing]) -> dict[OpenRing, str]:
        """Take the claims of new rings.

        Returns the rings that may not be read, and why: new ones whose rank is another's, and such
        as were read until its first owner came back.
        """
        refused: dict[OpenRing, str] = {}
        known = dict(self._first)
        for ring in sorted(rings.values(), key=lambda ring: not self._was_first(ring)):
            first = self._first.setdefault(_name(ring), ring.sender)
            held = self._rings.setdefault(ring.rank, [])
            others = [o for o in held if o.sender != ring.sender and o.reader.alive()]
            losers = others if first == ring.sender else [ring] if others else []
            for loser in losers:
                run, rank = loser.rank
                refused[loser] = f"rank {rank} of run {run} is {first or 'another pod'}'s"
            if ring not in losers:
                held.append(ring)
        if self._first != known:
            self._remember()
        return refused

    def forget(self, senders: frozenset[str]) -> None:
        """Let go of what belonged to pods that are gone; above a bound also of runs without rings.

        Args:
            senders: the directories there are.
        """
        kept = {name: sender for name, sender in self._first.items() if sender in senders}
        if len(kept) > _MOST_CLAIMS:
            runs = {run for run, _ in self._rings}
            kept = {name: of for name, of in kept.items() if name.rpartition("/")[0] in runs}
        if len(kept) < len(self._first):
            self._first = kept
            self._remember()

    def _was_first(self, ring: OpenRing) -> bool:
        return self._first.get(_name(ring)) == ring.sender

    def _remember(self) -> None:
        # Where all rings lie in one directory there is nothing to tell apart.
        if any(self._first.values()) or self._path.exists():
            # A full disk must not keep ranks from being read.
            with contextlib.suppress(OSError):
                write_durably(self._path, msgspec.json.encode(self._first))

    def drop(self, ring: OpenRing) -> None:
        """Give a claim back."""
        held = self._rings.get(ring.rank, [])
        if ring in held:
            held.remove(ring)
        if not held:
            self._rings.pop(ring.rank, None)

    def speaking(self) -> list[OpenRing]:
        """Return the one ring that speaks for each rank now."""
        found = []
        for held in self._rings.values():
            open_ones = [ring for ring in held if ring.superseded_since is None]
            if open_ones:
                found.append(max(open_ones, key=lambda ring: ring.reader.attempt))
        return found


def _name(ring: OpenRing) -> str:
    run, rank = ring.rank
    return f"{run}/{rank}"


def newest_attempts(rings: list[OpenRing]) -> dict[tuple[str, str], int]:
    """Return the newest attempt of each run by sender and run."""
    newest: dict[tuple[str, str], int] = {}
    for ring in rings:
        key = ring.sender, ring.reader.run
        newest[key] = max(newest.get(key, 0), ring.reader.attempt)
    return newest


def superseded(rings: list[OpenRing]) -> list[OpenRing]:
    """Return the rings whose attempt is over."""
    own = newest_attempts(rings)
    newest: dict[str, int] = {}
    for (_, run), attempt in own.items():
        newest[run] = max(newest.get(run, 0), attempt)
    return [
        ring
        for ring in rings
        if ring.reader.attempt < own[ring.sender, ring.reader.run]
        or (ring.reader.attempt < newest[ring.reader.run] and not ring.reader.alive())
    ]
