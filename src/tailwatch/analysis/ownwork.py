"""What each rank did itself in a step, and how much more than its peers for equal work.

Contract: seconds of shape (steps, ranks). Own work is time in which a rank stood at no exchange;
transfers and waiting are separate. `expected` says what a rank should have needed: the median of
its peers, scaled by its work where it has more (tokens, squared lengths, tokens of its experts), so
that a rank is neither blamed for its load nor, with little load, for a cost that everybody has.

Cost: a few medians over the ranks for each class.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from tailwatch.analysis.steptable import StepTable, Values

Class = Literal["dense", "experts", "rollout_generate", "reward", "optimizer", "exchange"]

_DENSE = ("forward_backward", "logprob_old", "logprob_ref")
_EXCHANGING = ("weight_sync", "advantage", "grad_sync")


class OwnWork(msgspec.Struct, frozen=True, kw_only=True):
    """One class of own work: seconds, what they should have been, and what the load explains."""

    name: Class
    seconds: Values
    expected: Values
    load: Values

    @property
    def excess(self) -> Values:
        """Seconds above the expected ones: what neither peers nor load explain."""
        return self.seconds - self.expected


def own_work(table: StepTable) -> list[OwnWork]:
    """Return the classes of own work that occur in a table."""
    children = np.sum(list(table.children.values()), axis=0)
    waited = table.waits.get("dp", np.zeros_like(table.duration))
    classes: list[tuple[Class, Values, list[Values]]] = [
        ("dense", _sum(table, _DENSE) - children, [table.tokens, table.squares]),
        ("experts", table.children["ep_experts"], [table.expert_tokens]),
        ("rollout_generate", table.phases["rollout_generate"], [table.tokens]),
        ("reward", table.phases["reward"], []),
        ("optimizer", table.phases["optimizer"], []),
        ("exchange", _sum(table, _EXCHANGING) - waited, []),
    ]
    found = []
    for name, seconds, loads in classes:
        seconds = np.where(seconds < 0, 0.0, seconds)
        if not (seconds > 0).any():
            continue
        usual = peer_median(seconds)
        expected = _expected(seconds, usual, loads)
        found.append(
            OwnWork(
                name=name,
                seconds=seconds,
                expected=expected,
                load=expected - usual,
            )
        )
    return found


def peer_median(values: Values) -> Values:
    """Return for each rank the median of the other ranks of the step; NaN for a rank alone."""
    steps, ranks = values.shape
    if ranks == 1:
        return np.full((steps, 1), np.nan)
    ordered = np.sort(values, axis=1)  # NaN goes last
    known = np.isfinite(values).sum(axis=1, keepdims=True)
    place = np.argsort(np.argsort(values, axis=1, kind="stable"), axis=1, kind="stable")
    others = known - np.isfinite(values)
    low, high = np.maximum(others - 1, 0) // 2, others // 2
    # Without the rank at `place`, the k-th of the others is the k-th or the (k+1)-th of all.
    below = np.take_along_axis(ordered, np.minimum(low + (place <= low), ranks - 1), axis=1)
    above = np.take_along_axis(ordered, np.minimum(high + (place <= high), ranks - 1), axis=1)
    return np.where(others > 0, (below + above) / 2, np.nan)


def lateness_of(table: StepTable) -> Values | None:
    """Return how much less each rank waited than its peers, over all exchanges; None unmeasured."""
    waits = list(table.waits.values())
    if not waits:
        return None
    late: Values = np.sum([peer_median(w) - w for w in [*waits, table.children["ep_combine"]]], 0)
    return late


def _sum(table: StepTable, names: tuple[str, ...]) -> Values:
    total: Values = np.sum([table.phases[name] for name in names], axis=0)
    return total


def _expected(seconds: Values, usual: Values, loads: list[Values]) -> Values:
    """Return what ranks should need: at least as long as their peers, longer with more load."""
    best: tuple[float, Values] = (-1.0, usual)
    for load in loads:
        peers = peer_median(load)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(peers > 0, load / peers, 1.0)
            slower = np.where(usual > 0, seconds / usual, 1.0)
            # Where most peers have nothing to do, what a token takes is all there is to go by.
            a_token = peer_median(np.where(load > 0, seconds / load, np.nan))
        answers = _elasticity(relative, slower)
        if answers > best[0]:
            grown = usual * np.maximum(np.nan_to_num(relative, nan=1.0), 1.0) ** answers
            idle_peers = np.nan_to_num(a_token * load)
            best = (answers, np.where(peers > 0, grown, np.maximum(usual, idle_peers)))
    return best[1]


def _elasticity(relative: Values, slower: Values) -> float:
    """Return by how many per cent time grows with one per cent of load, from 0 to 1.

    From how both vary within a rank, so that one slow rank says nothing. Where load hardly varies
    this cannot be known, and time is taken to be proportional: better no accusation than a false
    one.
    """
    known = (relative > 0) & (slower > 0) & np.isfinite(relative) & np.isfinite(slower)
    x = np.where(known, np.log(np.where(known, relative, 1.0)), np.nan)
    y = np.where(known, np.log(np.where(known, slower, 1.0)), np.nan)
    if known.sum() < 20:
        return 1.0
    x = x - np.nanmedian(x, axis=0)
    y = y - np.nanmedian(y, axis=0)
    x, y = x[known], y[known]
    if float(np.std(x)) < 0.02:
        return 1.0
    slope = float((x @ y) / (x @ x))
    left = np.abs(y - slope * x)
    inside = left <= 3 * 1.4826 * np.median(left) + 1e-9
    x, y = x[inside], y[inside]
    if float(np.std(x)) < 0.02:
        return 1.0
    slope = float((x @ y) / (x @ x))
    return float(np.clip(slope, 0.0, 1.0))
