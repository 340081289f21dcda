"""Runs the collectors: reads what is due, knows what is sick, and adds up the exposition.

Contract: `render` never waits for a device. After a failure a part is read less often, up to every
30 intervals. What becomes of the parts of a source is said in `source`.

Cost: two threads a source, and one that looks once a second for what hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from tailwatch.agents.node.base import HOLDS_DEVICES, Collector, NodeConfig
from tailwatch.agents.node.source import Source
from tailwatch.agents.service import log
from tailwatch.exposition import Snapshot, series

STALE_FLOOR_SECONDS = 3.0


class Readiness(NamedTuple):
    """Whether every source has fresh data, and one line a source that says so or why not."""

    ready: bool
    lines: list[str]


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
        self._paused_series = series("tailwatch_node_paused", node=config.node)
        self._rendering = threading.Lock()
        self._paused_types: list[type[Collector]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="watch")

    def _source(self, collector: Collector) -> Source:
        return Source(collector, self._config.node, self._stale_floor)

    def start(self) -> None:
        """Begin to read."""
        for source in self.sources:
            source.start()
        self._thread.start()

    def _look(self) -> None:
        following = 0.0
        while not self._ended.wait(max(following - time.monotonic(), 0.001)):
            now = time.monotonic()
            following = min((s.watch(now) for s in self.sources), default=now + 1.0)

    def nudge(self, name: str | None = None) -> None:
        """Read the parts of a source (of all, without a name) now and not at their time."""
        for source in self.sources:
            if name in (None, source.name):
                source.nudge()

    def rediscover(self) -> None:
        """Look now for parts that came or went."""
        for source in self.sources:
            source.rediscover()

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
        """Return a snapshot of all sources as of now."""
        snapshot = Snapshot()
        with self._rendering:
            snapshot.put(self._paused_series, int(self.paused))
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
        resumed = [self._source(collector) for collector in fresh]
        for source in resumed:
            source.start()
        self.sources = [*self.sources, *resumed]
        self.paused = False
        log("resumed")

    def close(self, timeout: float = 1.5) -> None:
        """Let go of everything, within `timeout` seconds whatever hangs."""
        self._ended.set()
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
