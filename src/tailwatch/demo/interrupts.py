"""Ctrl-C, SIGTERM and SIGHUP: the first one interrupts, wherever it strikes, and no later one.

Contract: an impatient second signal would hit the undo of what the first one interrupted. An
exception raised by a handler can be swallowed (Python does so inside hooks that run around a fork),
so the signal is also remembered: `check` raises it again until the run has ended.
"""

from __future__ import annotations

import signal
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The interrupts of this process; one instance a process."""

    def __init__(self) -> None:
        self.seen = False

    def install(self) -> None:
        """Take the signals over, also where a shell started this job with SIGINT ignored."""
        for number in NUMBERS:
            signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        for other in NUMBERS:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt when a signal has come."""
        if self.seen:
            raise KeyboardInterrupt
