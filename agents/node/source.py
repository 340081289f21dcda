"""One source of the node agent: its parts, when they are read, and what it says of their health.

Contract: a part whose last good read is older than three intervals (and the floor) loses its
series, and only its own. Every part says in `tailwatch_source_*` whether it reads, how old its data
are, how long a read takes and why it fails; one that disappears stays as a part that is down (code
`gone`) until it comes back or the agent is started or resumed anew.

Cost: about 3 us a part and read, 1 us a part and exposition.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from typing import NamedTuple

from tailwatch.agents.node.base import Collector, Part
from tailwatch.agents.node.lane import Lane, Slot, named
from tailwatch.agents.service import log
from tailwatch.exposition import Snapshot, series

DISCOVER_SECONDS = 10.0
STALE_INTERVALS = 3
_MAX_GONE = 64


class _Health(NamedTuple):
    """The series of the health of one part."""

    up: str
    age: str
    read: str
    resets: str

    @classmethod
    def of(cls, **labels: str) -> _Health:
        return cls(
            series("tailwatch_source_up", **labels),
            series("tailwatch_source_age_seconds", **labels),
            series("tailwatch_source_read_seconds", **labels),
            series("tailwatch_source_resets_total", **labels),
        )


class Source:
    """One collector with its parts and their health."""

    def __init__(self, collector: Collector, node: str, stale_floor: float) -> None:
        self.collector = collector
        self.name = collector.name
        self._node = node
        self._stale = max(STALE_INTERVALS * collector.interval, stale_floor)
        self.discovery = Slot("", self._discover)
        self._lane = Lane(self.name, collector.interval, self.slots)
        every = max(DISCOVER_SECONDS, collector.interval)
        self._discovery_lane = Lane(self.name, every, lambda: [self.discovery])
        self._lock = threading.Lock()
        self._slots: dict[str, Slot] = {}
        self._health: dict[str, _Health] = {}

    def slots(self) -> list[Slot]:
        """Return the slots of the parts, those that are gone among them."""
        with self._lock:
            return list(self._slots.values())

    def start(self) -> None:
        """Begin to look for parts, and to read them."""
        self._discovery_lane.start()
        self._lane.start()

    def nudge(self) -> None:
        """Read every part now and not at its time."""
        for slot in self.slots():
            slot.due = 0.0
        self._lane.poke()

    def rediscover(self) -> None:
        """Look now for parts that came or went."""
        self.discovery.due = 0.0
        self._discovery_lane.poke()

    def _discover(self) -> None:
        parts = {part.key: part for part in self.collector.discover()}
        with self._lock:
            for key, part in parts.items():
                self._find(key, part)
            for key in [k for k in self._slots if k not in parts]:
                self._lose(key)
        self._lane.poke()

    def _find(self, key: str, part: Part) -> None:
        known = self._slots.get(key)
        if known is None or known.part is not part:
            fresh = self._slots[key] = Slot(key, part.read, part)
            if known is not None:
                fresh.errors = known.errors
        elif known.gone:
            known.gone = False
            known.due = 0.0
            log(f"source {named(self.name, key)}: is there again")

    def _lose(self, key: str) -> None:
        slot = self._slots[key]
        if slot.gone:
            return
        slot.gone = True
        slot.note("gone")
        log(f"source {named(self.name, key)}: is gone")
        gone = [k for k, s in self._slots.items() if s.gone]
        for oldest in gone[:-_MAX_GONE]:
            del self._slots[oldest]
            self._health.pop(oldest, None)

    def watch(self, now: float) -> float:
        """Note what hangs, let the rest be read past it, and return when to call this again."""
        following = math.inf
        for lane in (self._discovery_lane, self._lane):
            following = min(following, lane.watch(now))
            for slot in lane.reading():
                started = slot.started
                if started is None or slot.hung:
                    continue
                limit = started + self.collector.deadline
                if now < limit:
                    following = min(following, limit)
                elif slot.started == started:
                    slot.hung = True
                    slot.note("hung")
                    log(
                        f"source {named(self.name, slot.device)}: a read has taken more than "
                        f"{self.collector.deadline:g} s"
                    )
        return following

    def busy(self) -> bool:
        """Whether a read is under way."""
        return bool(self._discovery_lane.reading() or self._lane.reading())

    def add_to(self, snapshot: Snapshot) -> None:
        """Add the samples of the source, and those about itself."""
        now = time.monotonic()
        self._add(self.collector, self.discovery, snapshot)
        slots = self.slots()
        if all(slot.device for slot in slots):
            slots.insert(0, self.discovery)
        for slot in slots:
            if slot.part is not None and self._fresh(slot, now):
                self._add(slot.part, slot, snapshot)
            self._add_health(snapshot, slot, now)

    def _add(self, of: Collector | Part, slot: Slot, snapshot: Snapshot) -> None:
        """Add the samples of one part; a mistake in its code costs no other part its series."""
        try:
            of.add_to(snapshot)
        except Exception:
            if "internal" not in slot.errors:
                log(f"source {named(self.name, slot.device)}: {traceback.format_exc(limit=-3)}")
            slot.note("internal")

    def _fresh(self, slot: Slot, now: float) -> bool:
        if slot.gone or slot.succeeded_at is None:
            return False
        return now - slot.succeeded_at <= self._stale

    def _add_health(self, snapshot: Snapshot, slot: Slot, now: float) -> None:
        labels = {"node": self._node, "source": self.name, "device": slot.device}
        health = self._health.get(slot.device)
        if health is None:
            health = self._health[slot.device] = _Health.of(**labels)
        started = slot.started
        if slot.finished or slot.hung or slot.gone:
            well = not (slot.error or slot.hung or slot.gone)
            # A part that stands for its source is down, too, when the source cannot be looked at.
            if not slot.device and self.discovery.error:
                well = False
            snapshot.put(health.up, int(well))
        if slot.succeeded_at is not None:
            snapshot.put(health.age, now - slot.succeeded_at)
        seconds = now - started if slot.hung and started is not None else slot.read_seconds
        snapshot.put(health.read, seconds)
        for code, count in sorted(slot.errors.items()):
            snapshot.add("tailwatch_source_errors_total", count, **labels, code=code)
        snapshot.put(health.resets, slot.resets)

    def readiness(self) -> tuple[bool, str]:
        """Return whether more than half of its parts are fresh, and which of them are not."""
        now = time.monotonic()
        if not self.discovery.finished:
            return False, f"{self.name}: not read yet"
        if self.discovery.error is not None:
            return False, f"{self.name}: {_first_line(self.discovery.error[1])}"
        slots = self.slots()
        sick = [slot for slot in slots if not self._fresh(slot, now)]
        said = ", ".join(f"{slot.device or self.name} {_reason(slot)}" for slot in sick)
        return (
            2 * len(sick) < len(slots) or not slots,
            f"{self.name}: {len(slots) - len(sick)} of {len(slots)} fresh"
            + (f" ({said})" if said else ""),
        )

    def stop(self) -> None:
        """Start no further read."""
        self._lane.stop()
        self._discovery_lane.stop()

    def close(self) -> None:
        """Close the parts that no read is in, and the collector."""
        for slot in self.slots():
            if slot.part is not None and slot.started is None:
                slot.part.close()
        self.collector.close()


def _first_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


def _reason(slot: Slot) -> str:
    if slot.gone:
        return "is gone"
    if slot.hung:
        return "hangs"
    if slot.error is not None:
        return f"fails: {_first_line(slot.error[1])}"
    return "has no fresh data"
