"""Change detection at two speeds, and the series behind it, against slow references."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tailwatch.analysis.changes import find_change, find_change_or_peers, rank_test
from tailwatch.analysis.ownwork import peer_median
from tailwatch.analysis.persistence import episode
from tailwatch.analysis.placement import balanced


def noisy(
    n: int, cv: float, phi: float, seed: int, *, at: int | None = None, factor: float = 1.0
) -> NDArray[np.float64]:
    """Step times around 1 s with autocorrelation and 1 % pauses; `factor` longer from `at` on."""
    rng = np.random.default_rng(seed)
    values = np.empty(n)
    last = 0.0
    for i in range(n):
        last = phi * last + rng.normal() * np.sqrt(1 - phi * phi)
        values[i] = 1 + cv * last
    values[rng.random(n) < 0.01] *= 2
    if at is not None:
        values[at:] *= factor
    return values


@pytest.mark.parametrize("cv", [0.01, 0.05])
def test_fast_rule_finds_thirty_per_cent_within_three_steps(cv: float) -> None:
    """A step time 40 % longer is found where it begins, at once."""
    for seed in range(20):
        series = noisy(120, cv, 0.3, seed, at=60, factor=1.4)
        found = find_change(series, noisy(300, cv, 0.3, 1000 + seed))
        assert found is not None
        assert found.speed == "fast"
        assert abs(found.first - 60) <= 3
        assert found.ratio == pytest.approx(1.4, rel=0.1)
        assert found.gone is None


def test_slow_rule_finds_ten_per_cent() -> None:
    """A drift of 10 % at 3 % of noise is too small for the fast rule and found by ranks."""
    for seed in range(20):
        series = noisy(200, 0.03, 0.3, seed, at=80, factor=1.1)
        found = find_change(series, noisy(300, 0.03, 0.3, 2000 + seed))
        assert found is not None
        assert found.speed == "slow"
        assert abs(found.first - 80) <= 12


def test_no_change_is_found_in_healthy_series() -> None:
    """In 200 healthy series of 300 steps at most one false alarm is raised."""
    alarms = sum(
        find_change(noisy(300, cv, 0.3, seed), noisy(300, cv, 0.3, 5000 + seed)) is not None
        for seed, cv in enumerate([0.01, 0.03, 0.05, 0.07] * 50)
    )
    assert alarms <= 1


def test_change_that_goes_away_says_so() -> None:
    """A change of 50 steps ends where it ended."""
    series = noisy(200, 0.02, 0.0, 3, at=60, factor=1.5)
    series[110:] /= 1.5
    found = find_change(series, noisy(300, 0.02, 0.0, 4))
    assert found is not None
    assert found.gone is not None
    assert abs(found.gone - 110) <= 3


def test_without_a_baseline_there_is_no_change() -> None:
    """Fewer than 20 values of a baseline, NaN or nothing at all give no answer."""
    series = np.full(100, 2.0)
    assert find_change(series, np.ones(10)) is None
    assert find_change(series, np.full(50, np.nan)) is None
    assert find_change(np.array([]), np.ones(50)) is None


def test_peers_stand_in_for_a_history() -> None:
    """Without a history a rank is compared with its peers; with one, a slow job is no change."""
    peers = np.stack([noisy(60, 0.02, 0.0, seed) for seed in range(3)], axis=1)
    series = noisy(60, 0.02, 0.0, 9, at=0, factor=1.5)
    found = find_change_or_peers(series, np.array([]), peers)
    assert found is not None
    assert (found.first, found.speed) == (0, "fast")
    assert find_change_or_peers(series, 1.5 * noisy(60, 0.02, 0.0, 5), peers) is None


def slow_rank_p(sample: Sequence[int], baseline: Sequence[int]) -> float:
    """Exact one-sided p of Mann-Whitney: over all ways to draw the sample from both together."""
    together = [*sample, *baseline]

    def u(chosen: tuple[int, ...]) -> float:
        rest = [v for i, v in enumerate(together) if i not in chosen]
        return sum((together[i] > b) + 0.5 * (together[i] == b) for i in chosen for b in rest)

    seen = u(tuple(range(len(sample))))
    every = [u(c) for c in itertools.combinations(range(len(together)), len(sample))]
    return sum(value >= seen for value in every) / len(every)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(12)))
def test_rank_test_is_near_the_exact_one(values: list[int]) -> None:
    """Without ties the normal approximation is within 0.02 of the exact p."""
    sample, baseline = values[:6], values[6:]
    fast = rank_test(np.array(sample, dtype=float), np.array(baseline, dtype=float))
    assert fast == pytest.approx(slow_rank_p(sample, baseline), abs=0.02)


def test_rank_test_with_ties() -> None:
    """Equal values say nothing, many ties say less than none, and both sides are told apart."""
    same, half, high = np.zeros(20), np.repeat([0.0, 1.0], 10), np.ones(20)
    assert rank_test(same, same) == 1.0
    assert rank_test(high, same) < 1e-8 < rank_test(half, same) < 0.001
    assert rank_test(same, half) > 0.999


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=24))
def test_episode_is_the_stretch_with_the_greatest_sum(hits: list[bool]) -> None:
    """The linear search finds as good a stretch as trying all of them."""
    score = [1 if hit else -4 for hit in hits]
    best = max(sum(score[i : j + 1]) for i in range(len(hits)) for j in range(i, len(hits)))
    found = episode(np.array(hits), min_steps=1)
    if best <= 0:
        assert found is None
    else:
        assert found is not None
        assert sum(score[found.first : found.last + 1]) == best
        assert hits[found.first]
        assert hits[found.last]
        assert found.hits == sum(hits[found.first : found.last + 1])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=4, max_size=4),
        min_size=1,
        max_size=3,
    )
)
def test_peer_median_is_that_of_the_others(rows: list[list[int | None]]) -> None:
    """The medians without one rank each, NaN left out, are those of numpy on the rest."""
    values = np.array([[np.nan if v is None else float(v) for v in row] for row in rows])
    found = peer_median(values)
    for i, row in enumerate(values):
        for rank in range(4):
            others = np.delete(row, rank)
            others = others[np.isfinite(others)]
            if len(others):
                assert found[i, rank] == np.median(others)
            else:
                assert np.isnan(found[i, rank])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1000), min_size=8, max_size=8))
def test_placement_is_complete_and_within_the_bound_of_its_rule(loads: list[float]) -> None:
    """Every expert has one place, ranks keep their number, and the busiest is near the best."""
    load, owners = np.array(loads), np.repeat(np.arange(4), 2)
    placed = balanced(load, owners, 4)
    assert sorted(expert for experts in placed for expert in experts) == list(range(8))
    assert [len(experts) for experts in placed] == [2, 2, 2, 2]
    busiest = max(load[experts].sum() for experts in placed)
    # With two places a rank, heaviest with lightest is the best there is.
    ordered = np.sort(load)
    best = max(ordered[i] + ordered[7 - i] for i in range(4))
    assert busiest <= 4 / 3 * best + 1e-9
