"""Looking for a lasting shift in series of seconds, one for each rank, against their own noise.

Contract: `shifts` tries the series as they are and then their running medians, because a small
shift in a noisy series only shows over many steps. A series has shifted when it is above `floor`
and above `NOISE` of its own spread in nearly all steps of a stretch. Steps in which a series does
not occur (NaN) are left out, and its stretches are told in the steps of the table again.

Cost: a median filter for each window; the search for a stretch only in series with enough hits.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.persistence import episode
from tailwatch.analysis.steptable import Values

WINDOWS = (1, 5, 15)
NOISE = 4.0
MIN_HITS = 8


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """A series (`column`) that is higher from step `first` to `last`, in `hits` of `steps`."""

    column: int
    first: int
    last: int
    hits: int
    steps: int


def running_median(values: Values, window: int) -> Values:
    """Return the centred running median along the steps; shape (steps, series), no NaN.

    Of 5 steps it is exact, of 15 the median of five medians of three: as robust against single
    steps, and comparisons of whole arrays instead of a sort for each of them.
    """
    if window == 1 or len(values) < window:
        return values
    half = window // 2
    padded = np.concatenate([values[:half][::-1], values, values[-half:][::-1]])
    if window == 15:
        padded = _median_of_3(padded[:-2], padded[1:-1], padded[2:])
    stride = 3 if window == 15 else 1
    size = len(values)
    return _median_of_5(*[padded[at : at + size] for at in range(0, 5 * stride, stride)])


def _median_of_3(a: Values, b: Values, c: Values) -> Values:
    middle: Values = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
    return middle


def _median_of_5(a: Values, b: Values, c: Values, d: Values, e: Values) -> Values:
    low = np.maximum(np.minimum(a, b), np.minimum(c, d))
    high = np.minimum(np.maximum(a, b), np.maximum(c, d))
    return _median_of_3(low, high, e)


def known_median(values: Values) -> Values:
    """Return the medians along the first axis without NaN; NaN where all are."""
    ordered = np.sort(values, axis=0)  # NaN goes last
    known = np.isfinite(values).sum(axis=0, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(known - 1, 0) // 2, axis=0)
    high = np.take_along_axis(ordered, np.minimum(known // 2, len(values) - 1), axis=0)
    middle: Values = ((low + high) / 2)[0]
    return middle


def spread(values: Values, lag: int = 1) -> float:
    """Return the usual noise of series, the median over all: no shift in one of them adds to it.

    From differences of values `lag` steps apart, in which a shift is one difference among many. A
    lag of the window of a running median leaves them independent, one of the number of kinds of
    steps compares like with like.
    """
    if len(values) <= lag:
        return 0.0
    apart = np.abs(values[lag:] - values[:-lag])
    return float(1.4826 * np.median(apart) / np.sqrt(2))


def shifts(
    values: Values, floor: Values, *, period: int = 1, extra: NDArray[np.bool_] | None = None
) -> list[Shift]:
    """Return the series that have shifted, at most one stretch each.

    Args:
        values: seconds, shape (steps, series); a step with NaN in all series does not count.
        floor: least seconds worth a word, shape (steps,).
        period: number of kinds of steps that take turns.
        extra: what must hold besides; shape of `values`.
    """
    occurs = np.flatnonzero(np.isfinite(values).any(axis=1))
    if len(occurs) < MIN_HITS:
        return []
    part, least = np.nan_to_num(values[occurs]), floor[occurs, None]
    also = np.ones_like(part, dtype=bool) if extra is None else extra[occurs]
    found: dict[int, Shift] = {}
    for window in WINDOWS:
        if len(part) < 2 * window:
            break
        smooth = running_median(part, window)
        noise = spread(smooth, -(-window // period) * period)
        hits = (smooth > np.maximum(least, NOISE * noise)) & also
        need = max(MIN_HITS, 2 * window)
        for column in np.flatnonzero(hits.sum(axis=0) >= need).tolist():
            stretch = episode(hits[:, column], need)
            if column in found or stretch is None:
                continue
            first = stretch.first
            if window > 1:
                first = _edge(part[:, column], first, window)
            found[column] = Shift(
                column=column,
                first=int(occurs[first]),
                last=int(occurs[stretch.last]),
                hits=stretch.hits,
                steps=stretch.steps,
            )
    return list(found.values())


def _edge(series: Values, first: int, window: int) -> int:
    """Return where in the raw series the stretch begins: the split that leaves least variance."""
    low, high = max(0, first - 2 * window), min(len(series), first + 2 * window)
    part = series[low:high]
    best = (np.inf, first - low)
    for at in range(max(2, first - low - window), min(len(part) - 1, first - low + window)):
        left = float(((part[:at] - part[:at].mean()) ** 2).sum())
        right = float(((part[at:] - part[at:].mean()) ** 2).sum())
        best = min(best, (left + right, at))
    return low + best[1]
