"""Whether a series became larger, at two speeds: at once for much, by ranks for little.

Contract: `find_change` compares a series, in the order of steps, with its baseline. Fast: three in
a row above median + 3 MAD of the baseline and at least `BIG` above the median. Slow: the newest
`SLOW_WINDOW` against the baseline by ranks (Mann-Whitney), every k-th step where steps depend on
the one before, and their median above that of the baseline by `SMALL` and by its spread. Whether a
change went away again is part of the answer. The series is to be normalised by work before
(seconds a token where tokens vary).

Cost: one pass for the fast rule, one sort of baseline and window for each slow test.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

BIG = 0.3
SMALL = 0.03
IN_A_ROW = 3
SLOW_WINDOW = 20
SLOW_P = 1e-6
MIN_BASELINE = 20


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A series that became larger: from index `first` on, to `ratio` times its baseline median.

    `gone` is the index from which on it is as before; None while it lasts.
    """

    first: int
    ratio: float
    speed: Literal["fast", "slow"]
    gone: int | None = None


def mad(values: Series) -> float:
    """Return the median absolute deviation, scaled to the standard deviation of normal values."""
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def rank_test(sample: Series, baseline: Series) -> float:
    """Return the one-sided p that values of `sample` are not larger than those of `baseline`.

    Mann-Whitney with midranks for ties and the normal approximation, good from 8 values each on.
    """
    n, m = len(sample), len(baseline)
    _, place, counts = np.unique(
        np.concatenate([sample, baseline]), return_inverse=True, return_counts=True
    )
    midrank = np.cumsum(counts) - (counts - 1) / 2
    u = float(midrank[place.reshape(-1)[:n]].sum()) - n * (n + 1) / 2
    total = n + m
    ties = float((counts**3 - counts).sum()) / (total * (total - 1))
    spread = math.sqrt(n * m / 12 * (total + 1 - ties))
    if spread == 0:
        return 1.0
    return 1 - NormalDist().cdf((u - n * m / 2 - 0.5) / spread)


def decorrelation_stride(values: Series) -> int:
    """Return k so that every k-th value depends little (autocorrelation below 0.2) on the last."""
    centred = values - values.mean()
    variance = float(centred @ centred)
    if variance == 0:
        return 1
    for lag in range(1, max(2, len(values) // 4)):
        if float(centred[:-lag] @ centred[lag:]) / variance < 0.2:
            return lag
    return max(1, len(values) // 4)


def find_change(series: Series, baseline: Series) -> Change | None:
    """Return the change of `series` against `baseline`, None when there is none to be sure of."""
    series = series[np.isfinite(series)]
    baseline = baseline[np.isfinite(baseline)]
    if len(baseline) < MIN_BASELINE or not len(series):
        return None
    usual, spread = float(np.median(baseline)), mad(baseline)
    if usual <= 0:
        return None
    return _fast(series, usual, spread) or _slow(series, baseline, usual, spread)


def find_change_or_peers(series: Series, history: Series, peers: Series) -> Change | None:
    """Return the change of `series` against its history or, while that is too short, its peers.

    Args:
        history: values of the same configuration before, kept across restarts; shape (n,).
        peers: values of the others in the steps of `series`; shape (steps, peers).
    """
    if np.isfinite(history).sum() >= MIN_BASELINE:
        return find_change(series, history)
    return find_change(series, peers.reshape(-1))


def _fast(series: Series, usual: float, spread: float) -> Change | None:
    high = series > max(usual + 3 * spread, (1 + BIG) * usual)
    runs = np.convolve(high, np.ones(IN_A_ROW), "valid") == IN_A_ROW
    if not runs.any():
        return None
    first = int(np.argmax(runs))
    return _lasting(series, first, usual, "fast")


def _slow(series: Series, baseline: Series, usual: float, spread: float) -> Change | None:
    stride = decorrelation_stride(baseline)
    reference = baseline[::stride]
    for end in range(SLOW_WINDOW, len(series) + 1, SLOW_WINDOW // 4):
        window = series[end - SLOW_WINDOW : end : stride]
        if len(window) < 8:
            # Steps depend on each other for so long that a longer window is needed.
            window = series[max(0, end - 8 * stride) : end : stride]
        raised = float(np.median(window)) > usual + max(SMALL * usual, spread)
        if len(window) >= 8 and raised and rank_test(window, reference) < SLOW_P:
            return _lasting(series, _shift(series[:end], usual), usual, "slow")
    return None


def _shift(series: Series, usual: float) -> int:
    """Return where the sum of what lies above the half-way level begins to grow for good."""
    level = (usual + float(np.median(series[-SLOW_WINDOW:]))) / 2
    # Clipped, so that one long pause before the change does not stand for twenty steps of it.
    above = np.clip((series - level) / (level - usual), -1.0, 1.0)
    return int(np.argmax(np.cumsum(above[::-1])[::-1]))


def _lasting(
    series: Series, first: int, usual: float, speed: Literal["fast", "slow"]
) -> Change | None:
    """Return the change, or where it went away: half-way back for `SLOW_WINDOW` steps."""
    rest = series[first:]
    ratio = float(np.median(rest[: 2 * SLOW_WINDOW])) / usual
    middle = usual * (1 + ratio) / 2
    back = np.convolve(rest < middle, np.ones(SLOW_WINDOW), "valid") >= 0.9 * SLOW_WINDOW
    gone = first + int(np.argmax(back)) if back.any() else None
    return Change(first=first, ratio=ratio, speed=speed, gone=gone)
