"""When something began to be so, and whether it stayed.

Contract: pure functions on yes/no series in the order of steps. An episode is the stretch that has
at least `SHARE` hits however it is cut at its ends; what a few chance hits make is none.

Cost: linear.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.diagnosis import lower_share

SHARE = 0.8
MIN_STEPS = 5


class Episode(NamedTuple):
    """A stretch of a series: first and last index, and how many of its `steps` are hits."""

    first: int
    last: int
    hits: int

    @property
    def steps(self) -> int:
        """Length of the stretch."""
        return self.last - self.first + 1

    @property
    def confidence(self) -> float:
        """Return the lower 95 % bound of the share of hits."""
        return lower_share(self.hits, self.steps)


def episode(hits: NDArray[np.bool_], min_steps: int = MIN_STEPS) -> Episode | None:
    """Return the strongest stretch of hits with at least `min_steps` of them, None without one.

    A hit counts 1 and a miss -4, so a stretch whose sum is above 0 from both of its ends has more
    than four hits a miss; the strongest has the greatest sum.
    """
    best = (0, 0, -1)
    total = first = 0
    for index, hit in enumerate(hits.tolist()):
        if total <= 0:
            total, first = 0, index
        total += 1 if hit else -4
        if total > best[0]:
            best = (total, first, index)
    _, first, last = best
    found = int(hits[first : last + 1].sum())
    return Episode(first, last, found) if found >= min_steps else None
