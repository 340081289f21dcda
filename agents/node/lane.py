"""Reads the parts of one source so that none of them can hold up another.

Contract: one thread reads the parts one after the other. A part that takes longer than
`HANDOVER_SECONDS` keeps that thread for itself, and a new one goes on with the rest; when the read
returns after all, its thread ends. So a source costs one thread while it is well, and one more for
each part that hangs, and a part that hangs is never read a second time meanwhile. Threads are
daemons: a read that never returns does not hold up the end of the process.

Cost: about 3 us a part and read, one thread switch a batch.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

from tailwatch.agents.node.collectors.base import NeedsNewProcess, Part, ResetWatch, code_of
from tailwatch.agents.service import log

HANDOVER_SECONDS = 0.05
BACKOFF_INTERVALS = 30


class Slot:
    """A part (or the discovery of parts) and how its reads went.

    Attributes:
        due: monotonic time of the next read.
        started: when the read under way began; None when none is.
        succeeded_at, read_seconds: of the last good read, of the last read.
        error: code and text of the last read when that failed.
        errors: failed reads by code.
        hung: the read under way is over its deadline.
        finished: reads that ended, well or not.
    """

    def __init__(self, device: str, read: Callable[[], None], part: Part | None = None) -> None:
        self.device = device
        self.part = part
        self._read = read
        self.due = 0.0
        self.queued = False
        self.started: float | None = None
        self.succeeded_at: float | None = None
        self.read_seconds: float | None = None
        self.error: tuple[str, str] | None = None
        self.errors: dict[str, int] = {}
        self.failures = 0
        self.hung = False
        self.gone = False
        self.finished = 0
        self.fatal = ""

    @property
    def resets(self) -> int | None:
        """Resets of its counters; None for a part without any."""
        watch = getattr(self.part, "resets", None)
        return watch.count if isinstance(watch, ResetWatch) else None

    def read(self, source: str, interval: float, epoch: float) -> None:
        """Read it once, and set when it is due again; a failure waits longer each time."""
        started = self.started = time.monotonic()
        error: tuple[str, str] | None = None
        try:
            self._read()
        except Exception as problem:
            error = code_of(problem), str(problem) or type(problem).__name__
            if error[0] == "internal":
                error = "internal", traceback.format_exc(limit=-3)
            if isinstance(problem, NeedsNewProcess):
                self.fatal = f"source {source}: {problem}"
        ended = time.monotonic()
        self.read_seconds = ended - started
        if error is None:
            self.succeeded_at = ended
            self.failures = 0
        else:
            self.errors[error[0]] = self.errors.get(error[0], 0) + 1
            self.failures += 1
        if (error and error[0]) != (self.error and self.error[0]):
            log(f"source {named(source, self.device)}: {error[1] if error else 'reads again'}")
        self.error = error
        self.hung = False
        wait = interval * min(2 ** max(self.failures - 1, 0), BACKOFF_INTERVALS)
        # On a grid, so that the parts of a source stay one batch whatever each of them took.
        begun = math.floor((started - epoch) / interval + 1e-6) + wait / interval
        self.due = epoch + interval * max(begun, math.ceil((ended - epoch) / interval))
        self.finished += 1
        self.started = None

    def note(self, code: str) -> None:
        """Count an error that no read returned."""
        self.errors[code] = self.errors.get(code, 0) + 1


def named(source: str, device: str) -> str:
    """Return `source` or `source/device`, for people."""
    return f"{source}/{device}" if device else source


class Lane:
    """Reads slots in the order they are handed in, on a thread of its own that a hang replaces."""

    def __init__(self, source: str, interval: float) -> None:
        self._source = source
        self._interval = interval
        self._epoch = time.monotonic()
        self._pending: deque[Slot] = deque()
        self._changed = threading.Condition()
        self._generation = 0
        self._current: Slot | None = None
        self._running = False
        self._stopped = False

    def hand_in(self, slots: list[Slot]) -> None:
        """Read these slots as soon as their turn comes."""
        with self._changed:
            if self._stopped:
                return
            for slot in slots:
                slot.queued = True
                self._pending.append(slot)
            if not self._running:
                self._start()
            self._changed.notify()

    def hand_over_at(self) -> float | None:
        """Hand over if that is due; else return when it will be, None while nothing waits."""
        with self._changed:
            current = self._current
            started = current.started if current else None
            if started is None or not self._pending:
                return None
            if time.monotonic() < started + HANDOVER_SECONDS:
                return started + HANDOVER_SECONDS
            self._generation += 1
            self._current = None
            self._start()
            return None

    def stop(self) -> None:
        """Read nothing further; the threads end with the reads they are in."""
        with self._changed:
            self._stopped = True
            self._generation += 1
            for slot in self._pending:
                slot.queued = False
            self._pending.clear()
            self._changed.notify_all()

    def _start(self) -> None:
        self._running = True
        threading.Thread(
            target=self._work, args=(self._generation,), daemon=True, name=f"read-{self._source}"
        ).start()

    def _work(self, generation: int) -> None:
        while True:
            with self._changed:
                while not self._pending and generation == self._generation:
                    self._changed.wait()
                if generation != self._generation:
                    return
                slot = self._current = self._pending.popleft()
                slot.started = time.monotonic()
                slot.queued = False
            slot.read(self._source, self._interval, self._epoch)
            with self._changed:
                if generation != self._generation:
                    return
                self._current = None
