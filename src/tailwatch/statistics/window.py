"""Two memories of durations: the newest exactly, all of them approximately.

Contract: `Window` keeps the newest `RING_SAMPLES` samples, for alerts. `LongHorizon` keeps all of
them as an HDR histogram: values to 3 significant digits from 1 us to an hour, the same size however
many, and mergeable, so that hours of many jobs add up to a day. A quantile of it has no bounds,
because it does not know the order of its samples.

Cost: 0.1 us and 2 us a sample; 32 KiB and, encoded, about 2 KiB.
"""

from __future__ import annotations

import math

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

RING_SAMPLES = 4096
_MICRO = 1_000_000
_LONGEST_S = 3600.0


class Window:
    """A ring of the newest samples, oldest first when read. Refuses what is no duration."""

    def __init__(self, capacity: int = RING_SAMPLES) -> None:
        self._ring = np.zeros(capacity)
        self._taken = 0

    def __len__(self) -> int:
        return min(self._taken, len(self._ring))

    def add(self, seconds: float) -> None:
        """Take a sample; raise ValueError for NaN, infinite and negative ones."""
        _check(seconds)
        self._ring[self._taken % len(self._ring)] = seconds
        self._taken += 1

    def values(self) -> NDArray[np.float64]:
        """Return the samples in the order in which they came."""
        if self._taken <= len(self._ring):
            return self._ring[: self._taken].copy()
        return np.roll(self._ring, -(self._taken % len(self._ring)))


class LongHorizon:
    """A mergeable histogram of durations in seconds."""

    def __init__(self, encoded: bytes | None = None) -> None:
        if encoded is None:
            self._histogram = HdrHistogram(1, int(_LONGEST_S * _MICRO), 3)
            return
        try:
            self._histogram = HdrHistogram.decode(encoded)
        except Exception as error:  # the library raises its own and zlib's, without a common base
            raise ValueError(f"no encoded histogram: {error}") from None

    def __len__(self) -> int:
        return int(self._histogram.get_total_count())

    def add(self, seconds: float) -> None:
        """Take a sample; longer ones than an hour count as an hour. ValueError as in `Window`."""
        _check(seconds)
        self._histogram.record_value(max(1, round(min(seconds, _LONGEST_S) * _MICRO)))

    def merge(self, other: LongHorizon) -> None:
        """Add all samples of another one."""
        self._histogram.add(other._histogram)

    def quantile(self, q: float) -> float | None:
        """Return the q-quantile in seconds, to 3 significant digits; None without samples."""
        if not len(self):
            return None
        return float(self._histogram.get_value_at_percentile(100 * q)) / _MICRO

    def encode(self) -> bytes:
        """Return the histogram as printable bytes that `LongHorizon` takes."""
        return bytes(self._histogram.encode())


def _check(seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{seconds} is no duration in seconds")
