"""Reads the parts of one source at their times so that none of them can hold up another.

Contract: one thread reads what is due, one part after the other, and sleeps until more is. A part
that takes longer than `HANDOVER_SECONDS` keeps that thread for itself, and a new one goes on with
the rest as soon as `watch` is called; when the read returns after all, its thread ends. So a lane
costs one thread while all is well, and one more for each part that hangs, and a part that hangs is
never read a second time meanwhile. Threads are daemons: a read that never returns does not hold up
the end of the process.

Cost: about 1 us a part and read, one wake-up for all that are due at one time.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence

from tailwatch.agents.node.base import NeedsNewProcess, Part, ResetWatch, code_of
from tailwatch.agents.service import log

HANDOVER_SECONDS = 0.025
WATCH_SECONDS = 1.0
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
    """Reads slots when they are due, on a thread of its own that a hang replaces.

    Args:
        source: name of the source, for people.
        interval: seconds between two reads of a slot.
        slots: returns the slots there are now; called by whichever thread reads them.
    """

    def __init__(self, source: str, interval: float, slots: Callable[[], Sequence[Slot]]) -> None:
        self._source = source
        self._interval = interval
        self._slots = slots
        self._epoch = time.monotonic()
        self._due: deque[Slot] = deque()
        self._changed = threading.Condition()
        self._generation = 0
        self._current: Slot | None = None
        self._left_behind: list[Slot] = []
        self._stopped = False

    def start(self) -> None:
        """Begin to read."""
        with self._changed:
            self._spawn()

    def poke(self) -> None:
        """Look at once whether something is due."""
        with self._changed:
            self._changed.notify()

    def reading(self) -> list[Slot]:
        """Return the slots that a read is in."""
        with self._changed:
            current = [] if self._current is None else [self._current]
            return [*current, *self._left_behind]

    def watch(self, now: float) -> float:
        """Leave a read behind that holds up others; return when to call this again."""
        with self._changed:
            current = self._current
            started = None if current is None else current.started
            if current is None or started is None:
                return now + WATCH_SECONDS
            if now < started + HANDOVER_SECONDS:
                return started + HANDOVER_SECONDS
            if not (self._due or self._find_due(now)):
                return now + WATCH_SECONDS
            self._leave_behind()
            self._spawn()
            return now + HANDOVER_SECONDS

    def stop(self) -> None:
        """Read nothing further; the threads end with the reads they are in."""
        with self._changed:
            self._stopped = True
            self._leave_behind()
            self._changed.notify_all()

    def _leave_behind(self) -> None:
        """Make the thread there is end with the read it is in."""
        self._generation += 1
        if self._current is not None:
            self._left_behind.append(self._current)
            self._current = None

    def _spawn(self) -> None:
        if not self._stopped:
            threading.Thread(
                target=self._work,
                args=(self._generation,),
                daemon=True,
                name=f"read-{self._source}",
            ).start()

    def _work(self, generation: int) -> None:
        while True:
            with self._changed:
                slot = self._next(generation)
                if slot is None:
                    return
                self._current = slot
                slot.started = time.monotonic()
            slot.read(self._source, self._interval, self._epoch)
            with self._changed:
                if generation == self._generation:
                    self._current = None
                elif slot in self._left_behind:
                    self._left_behind.remove(slot)
                    # Its thread ends here; whoever took over waits for a time without it.
                    self._changed.notify()

    def _next(self, generation: int) -> Slot | None:
        """Wait for a slot that is due and return it; None when another thread has taken over."""
        while generation == self._generation:
            if self._due:
                return self._due.popleft()
            now = time.monotonic()
            following = self._find_due(now)
            if not self._due:
                self._changed.wait(None if following is None else following - now)
        return None

    def _find_due(self, now: float) -> float | None:
        """Line up the slots that are due; return when the next one will be, None without any."""
        following = None
        for slot in self._slots():
            if slot.started is not None or slot.gone:
                continue
            if slot.due <= now:
                self._due.append(slot)
            elif following is None or slot.due < following:
                following = slot.due
        return following
