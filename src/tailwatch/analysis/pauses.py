"""Causes that a record names itself: `gc`, `data_loader`, `checkpoint`.

Contract: like the other rules, one candidate a kind with its seconds a step. Pauses come now and
then, so what counts is the time they take in all, from the first one that is longer than those of
the past; a span that is longer in every step is found the same way.

Cost: a few medians.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.candidate import SMALL_SHARE, Candidate, Steps, worker_of
from tailwatch.analysis.diagnosis import Verdict, lower_share
from tailwatch.analysis.steptable import Values

_SPANS: tuple[tuple[Verdict, str], ...] = (
    ("gc", "gc"),
    ("data_loader", "data"),
    ("checkpoint", "checkpoint"),
)
_MANY_GAPS = 4
PAUSE_SHARE = 0.03
MIN_PAUSES = 3


def spans(steps: Steps) -> list[Candidate]:
    """Return the candidates of all spans that take longer than they did."""
    found = [_span(steps, verdict, steps.table.phases[phase]) for verdict, phase in _SPANS]
    return [candidate for candidate in found if candidate is not None]


def _span(steps: Steps, verdict: Verdict, seconds: Values) -> Candidate | None:
    worst = np.nan_to_num(np.nanmax(seconds, axis=1))
    occurs = worst > 0
    before = worst[steps.past & occurs]
    usual = float(np.median(before)) if len(before) else 0.0
    noise = float(1.4826 * np.median(np.abs(before - usual))) if len(before) else 0.0
    over = worst - usual
    hits = occurs & (over > np.maximum(SMALL_SHARE * steps.usual, max(4 * noise, 0.3 * usual)))
    stretch = _stretch(hits, occurs)
    if stretch is None:
        return None
    first, last = stretch
    cost = np.zeros(len(worst))
    cost[first : last + 1] = np.where(hits, over, 0.0)[first : last + 1]
    lasted = float(steps.table.step_seconds()[first : last + 1].sum())
    if cost.sum() < PAUSE_SHARE * lasted:
        return None
    inside = np.flatnonzero(hits[first : last + 1]) + first
    ranks = np.argmax(np.nan_to_num(seconds[inside]), axis=1)
    same = np.bincount(ranks, minlength=seconds.shape[1])
    whom = int(np.argmax(same))
    others = np.median(np.delete(np.nan_to_num(seconds[inside]), whom, axis=1), axis=1)
    alone = seconds.shape[1] > 1 and same[whom] >= 0.8 * len(inside)
    alone = alone and bool(np.median(worst[inside]) > 2 * np.median(others))
    accused = []
    if alone:
        ratio = float(np.median(worst[inside]) / max(float(np.median(others)), 1e-6))
        name = "data" if verdict == "data_loader" else verdict
        accused = [worker_of(steps.table, whom, name, ratio)]
    slow = steps.table.step_seconds()[first : last + 1] > steps.usual[first : last + 1] * 1.05
    explained = int((slow & (cost[first : last + 1] > 0)).sum())
    where = (
        f"rank {whom}" if alone else "changing ranks" if same.max() < 0.8 * len(inside) else "all"
    )
    return Candidate(
        verdict=verdict,
        workers=accused,
        first=first,
        last=last,
        cost=cost,
        confidence=lower_share(explained, int(slow.sum())),
        reason=(
            f"{len(inside)} spans of {verdict.replace('_', ' ')} on {where} take "
            f"{cost.sum():.2f} s of {lasted:.2f} s, usually {usual:.3f} s each"
        ),
    )


def _stretch(hits: NDArray[np.bool_], occurs: NDArray[np.bool_]) -> tuple[int, int] | None:
    """Return first and last step of the hits that follow each other at their usual distance."""
    at = np.flatnonzero(hits)
    if len(at) < MIN_PAUSES:
        return None
    gaps = np.diff(at)
    limit = max(_MANY_GAPS * float(np.median(gaps)), 10.0)
    cuts = np.flatnonzero(gaps > limit)
    parts = np.split(at, cuts + 1)
    longest = max(parts, key=len)
    if len(longest) < MIN_PAUSES:
        return None
    return int(longest[0]), int(longest[-1])
