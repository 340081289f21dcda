"""Runs the collectors: reads what is due, knows what is sick, and adds up the exposition.

Contract: `/metrics` never waits for a device. A part whose last good read is older than three
intervals (and `stale_floor`) loses its series, and only its own. Every part says in
`tailwatch_source_*` whether it reads, how old its data are, how long a read takes and why it fails;
one that disappears stays as a source that is down (code `gone`) until it comes back or the agent is
started or resumed anew. After a failure a part is read less often, up to every 30 intervals.

Cost: one thread a source, one for the schedule; about 3 us a part and read.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from tailwatch.agents.node.collectors.base import HOLDS_DEVICES, Collector, NodeConfig, Part
from tailwatch.agents.node.lane import HANDOVER_SECONDS, Lane, Slot, named
from tailwatch.agents.service import log
from tailwatch.exposition import Snapshot

DISCOVER_SECONDS = 10.0
STALE_INTERVALS = 3
STALE_FLOOR_SECONDS = 3.0
_MAX_GONE = 64
_IDLE_SECONDS = 1.0


class Readiness(NamedTuple):
    """Whether every source has fresh data, and one line a source that says so or why not."""

    ready: bool
    lines: list[str]


class Source:
    """One collector with its parts and their health."""

    def __init__(self, collector: Collector, node: str, stale_floor: float) -> None:
        self.collector = collector
        self.name = collector.name
        self._node = node
        self._stale = max(STALE_INTERVALS * collector.interval, stale_floor)
        self.lane = Lane(self.name, collector.interval)
        self._discovery_lane = Lane(self.name, max(DISCOVER_SECONDS, collector.interval))
        self.discovery = Slot("", self._discover)
        self._lock = threading.Lock()
        self._slots: dict[str, Slot] = {}

    def slots(self) -> list[Slot]:
        """Return the slots of the parts, those that are gone among them."""
        with self._lock:
            return list(self._slots.values())

    def _discover(self) -> None:
        parts = {part.key: part for part in self.collector.discover()}
        with self._lock:
            for key, part in parts.items():
                known = self._slots.get(key)
                if known is None or known.part is not part:
                    fresh = self._slots[key] = Slot(key, part.read, part)
                    if known is not None:
                        fresh.errors = known.errors
                    fresh.due = time.monotonic()
                elif known.gone:
                    known.gone = False
                    known.due = time.monotonic()
                    log(f"source {named(self.name, key)}: is there again")
            for key in [k for k in self._slots if k not in parts]:
                self._lose(key)

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

    def turn(self, now: float) -> float:
        """Start what is due, note what hangs, and return when to look again."""
        following = now + _IDLE_SECONDS
        for lane, slots in ((self._discovery_lane, [self.discovery]), (self.lane, self.slots())):
            due = []
            for slot in slots:
                started = slot.started
                if started is not None:
                    limit = started + self.collector.deadline
                    if now < limit:
                        following = min(following, limit)
                    elif not slot.hung and slot.started == started:
                        slot.hung = True
                        slot.note("hung")
                        log(
                            f"source {named(self.name, slot.device)}: a read has taken more than "
                            f"{self.collector.deadline:g} s"
                        )
                elif not (slot.queued or slot.gone):
                    if slot.due <= now:
                        due.append(slot)
                    else:
                        following = min(following, slot.due)
            if due:
                lane.hand_in(due)
            handover = lane.hand_over_at()
            if handover is not None:
                following = min(following, handover)
            elif due:
                following = min(following, now + HANDOVER_SECONDS)
        return following

    def busy(self) -> bool:
        """Whether a read is under way or waits for its turn."""
        slots = [self.discovery, *self.slots()]
        return any((slot.started is not None or slot.queued) for slot in slots)

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
        started = slot.started
        if slot.finished or slot.hung or slot.gone:
            well = not (slot.error or slot.hung or slot.gone)
            # A part that stands for its source is down, too, when the source cannot be looked at.
            if not slot.device and self.discovery.error:
                well = False
            snapshot.add("tailwatch_source_up", int(well), **labels)
        if slot.succeeded_at is not None:
            snapshot.add("tailwatch_source_age_seconds", now - slot.succeeded_at, **labels)
        seconds = now - started if slot.hung and started is not None else slot.read_seconds
        snapshot.add("tailwatch_source_read_seconds", seconds, **labels)
        for code, count in sorted(slot.errors.items()):
            snapshot.add("tailwatch_source_errors_total", count, **labels, code=code)
        snapshot.add("tailwatch_source_resets_total", slot.resets, **labels)

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
        self.lane.stop()
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


class Watch:
    """Runs collectors until it is closed.

    Args:
        collectors: what to read.
        config: handed to the collectors that `resume` makes anew.
        stale_floor: seconds that data live at least, however short the interval.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        config: NodeConfig,
        *,
        stale_floor: float | None = None,
    ) -> None:
        self._config = config
        self._stale_floor = STALE_FLOOR_SECONDS if stale_floor is None else stale_floor
        self.sources = [self._source(collector) for collector in collectors]
        self.paused = False
        self._paused_types: list[type[Collector]] = []
        self._ended = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._schedule, daemon=True, name="schedule")

    def _source(self, collector: Collector) -> Source:
        return Source(collector, self._config.node, self._stale_floor)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def _schedule(self) -> None:
        while not self._ended:
            self._wake.clear()
            now = time.monotonic()
            following = min((source.turn(now) for source in self.sources), default=now + 1)
            self._wake.wait(max(following - time.monotonic(), 0.001))

    def nudge(self, name: str | None = None) -> None:
        """Read the parts of a source (of all, without a name) now and not at their time."""
        for source in self.sources:
            if name in (None, source.name):
                for slot in source.slots():
                    slot.due = 0.0
        self._wake.set()

    def rediscover(self) -> None:
        """Look now for parts that came or went."""
        for source in self.sources:
            source.discovery.due = 0.0
        self._wake.set()

    def settled(self) -> bool:
        """Whether every part has been read at least once, or hangs."""
        return all(
            (source.discovery.finished or source.discovery.hung)
            and all(slot.finished or slot.hung or slot.gone for slot in source.slots())
            for source in list(self.sources)
        )

    @property
    def fatal(self) -> str:
        """Why only a new process can go on; "" while this one can."""
        for source in list(self.sources):
            for slot in (source.discovery, *source.slots()):
                if slot.fatal:
                    return slot.fatal
        return ""

    def render(self) -> Snapshot:
        """Return a snapshot of all sources."""
        snapshot = Snapshot()
        snapshot.add("tailwatch_node_paused", int(self.paused), node=self._config.node)
        for source in self.sources:
            source.add_to(snapshot)
        return snapshot

    def readiness(self) -> Readiness:
        """Return whether each source has fresh data, and a line for each."""
        found = [source.readiness() for source in list(self.sources)]
        lines = [line for _, line in found]
        if self.paused:
            lines.append("paused: all devices are released until SIGUSR2")
        return Readiness(all(ready for ready, _ in found) and not self.paused, lines)

    def pause(self, timeout: float = 5.0) -> None:
        """Release every device handle; the sources that hold none go on."""
        if self.paused:
            return
        released = [source for source in self.sources if source.name in HOLDS_DEVICES]
        self.sources = [source for source in self.sources if source not in released]
        self._paused_types = [type(source.collector) for source in released]
        self.paused = True
        _close(released, timeout)
        log(f"paused: released {', '.join(source.name for source in released) or 'nothing'}")

    def resume(self) -> None:
        """Begin anew with what `pause` released."""
        if not self.paused:
            return
        fresh = [kind(self._config) for kind in self._paused_types]
        self.sources = [
            *self.sources,
            *(Source(c, self._config.node, self._stale_floor) for c in fresh),
        ]
        self.paused = False
        self._wake.set()
        log("resumed")

    def close(self, timeout: float = 1.5) -> None:
        """Let go of everything, within `timeout` seconds whatever hangs."""
        self._ended = True
        self._wake.set()
        _close(self.sources, timeout)


def _close(sources: list[Source], timeout: float) -> None:
    """Stop sources, wait for their reads and close them; leave behind what hangs."""
    until = time.monotonic() + timeout
    for source in sources:
        source.stop()
    while any(source.busy() for source in sources) and time.monotonic() < until - timeout / 2:
        time.sleep(0.005)
    closing = [
        threading.Thread(target=source.close, daemon=True, name=f"close-{source.name}")
        for source in sources
    ]
    for thread in closing:
        thread.start()
    for source, thread in zip(sources, closing, strict=True):
        thread.join(max(until - time.monotonic(), 0.0))
        if thread.is_alive():
            log(f"source {source.name}: does not let go")
