"""Whether the fabric of this node carries work now, by the bytes its devices move.

Contract: sources that read byte counters `note` them as they read; nobody reads a device for this.
`now` is `busy` when the devices of the last seconds together moved `BUSY_BYTES_PER_SECOND`, `idle`
when they moved less, `unknown` while no device was noted twice. A counter that fell has no rate.

Cost: below 1 us a note. Several threads may note; each device is one thread's at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

Load = Literal["idle", "busy", "unknown"]
LOADS: tuple[Load, ...] = get_args(Load)
BUSY_BYTES_PER_SECOND = 100e6
"""A thousandth of what a node of 100 GB/s can move, and more than its housekeeping does."""

_FRESH_SECONDS = 5.0


class _Noted(NamedTuple):
    moved: int
    at: float
    rate: float | None


class FabricLoad:
    """What is known of the traffic of a node.

    >>> now = [0.0]
    >>> load = FabricLoad(clock=lambda: now[0])
    >>> load.note("rdmap79s0", 0)
    >>> load.now()
    'unknown'
    >>> now[0] = 1.0
    >>> load.note("rdmap79s0", 500_000_000)
    >>> load.now()
    'busy'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._noted: dict[str, _Noted] = {}

    def note(self, device: str, moved: int) -> None:
        """Take the bytes a device has sent and received so far."""
        now = self._clock()
        before = self._noted.get(device)
        rate = None
        if before is not None and now > before.at and moved >= before.moved:
            rate = (moved - before.moved) / (now - before.at)
        self._noted[device] = _Noted(moved, now, rate)

    def now(self) -> Load:
        """Return how busy the fabric was over the last reads of its devices."""
        since = self._clock() - _FRESH_SECONDS
        rates = [n.rate for n in self._noted.copy().values() if n.at >= since]
        known = [rate for rate in rates if rate is not None]
        if not known:
            return "unknown"
        return "busy" if sum(known) >= BUSY_BYTES_PER_SECOND else "idle"
