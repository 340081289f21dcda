"""Quantiles, bounds and effective sizes against slow references and known truth."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tailwatch.statistics import N_EFF_FOR_P99, bounds, effective_size, quantile_bounds

P99_OF_NORMAL = NormalDist().inv_cdf(0.99)


def slow_effective_size(samples: list[float], quantile: float) -> float:
    """The formula as written on paper: n / (1 + 2 sum rho_k), up to the first rho below 0.05."""
    n = len(samples)
    exceeds = [1.0 if sample > quantile else 0.0 for sample in samples]
    if not any(exceeds):
        exceeds = [1.0 if sample >= quantile else 0.0 for sample in samples]
    mean = sum(exceeds) / n
    variance = sum((e - mean) ** 2 for e in exceeds)
    if n < 3 or variance == 0:
        return float(n)
    total = 0.0
    for lag in range(1, n // 2):
        pairs = zip(exceeds[:-lag], exceeds[lag:], strict=True)
        rho = sum((a - mean) * (b - mean) for a, b in pairs) / variance
        assume(abs(rho - 0.05) > 1e-9)  # at the threshold itself rounding decides
        if rho < 0.05:
            break
        total += rho
    return n / (1 + 2 * total)


def exact_binomial(n: int, q: Fraction) -> list[Fraction]:
    """P(Binomial(n, q) <= k) for each k, in exact arithmetic."""
    cumulative, found = Fraction(0), []
    for k in range(n + 1):
        cumulative += math.comb(n, k) * q**k * (1 - q) ** (n - k)
        found.append(cumulative)
    return found


def slow_bounds(samples: list[float], q: Fraction) -> tuple[float | None, float | None]:
    """Bounds of independent samples: the order statistics that cover with 95 %, by search."""
    n, ordered = len(samples), sorted(samples)
    at_most = exact_binomial(n, q)
    level = Fraction(19, 20)
    # The k-th smallest is at or below the quantile when at least k samples are.
    low = [k for k in range(1, n + 1) if 1 - at_most[k - 1] >= level]
    # The k-th smallest is at or above the quantile when at most k - 1 samples lie below it.
    high = [k for k in range(1, n + 1) if at_most[k - 1] >= level]
    return (
        ordered[low[-1] - 1] if low else None,
        ordered[high[0] - 1] if high else None,
    )


def ar1(n: int, phi: float, rng: np.random.Generator, repeats: int) -> NDArray[np.float64]:
    """Normal samples with autocorrelation `phi`, variance 1; shape (repeats, n)."""
    noise = rng.standard_normal((repeats, n)) * math.sqrt(1 - phi * phi)
    samples = np.empty((repeats, n))
    samples[:, 0] = rng.standard_normal(repeats)
    for i in range(1, n):
        samples[:, i] = phi * samples[:, i - 1] + noise[:, i]
    return samples


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=120),
    st.floats(0, 1),
)
def test_effective_size_is_that_of_the_formula(samples: list[float], quantile: float) -> None:
    """The fast effective size equals the one computed term by term."""
    fast = effective_size(np.array(samples), quantile)
    assert fast == pytest.approx(slow_effective_size(samples, quantile), rel=1e-9)


def test_effective_size_never_exceeds_n_and_falls_with_clusters() -> None:
    """Ten slow steps in a row say less than ten apart."""
    apart = np.zeros(1000)
    apart[::100] = 1.0
    together = np.zeros(1000)
    together[500:510] = 1.0
    assert effective_size(apart, 0.5) == 1000.0
    assert effective_size(together, 0.5) < 150.0


@pytest.mark.parametrize("n", [1, 59, 298, 299, 472, 473, 800])
def test_bounds_of_independent_samples_are_the_exact_binomial_ones(n: int) -> None:
    """For samples without autocorrelation the bounds are those of exact arithmetic."""
    spread = np.linspace(0.1, 0.9, n)
    samples = np.random.default_rng(n).permutation(spread)
    found = quantile_bounds(samples)
    if found.n_eff == n:  # a chance cluster of exceedances makes it less
        assert (found.lower, found.upper) == slow_bounds(samples.tolist(), Fraction(99, 100))
    assert found.estimate == np.quantile(samples, 0.99, method="inverted_cdf")


def test_no_bound_is_skipped_because_of_chance_clusters() -> None:
    """The exact comparison above really is made at both sides of the edge."""
    for n in (298, 299, 473, 800):
        samples = np.random.default_rng(n).permutation(np.linspace(0.1, 0.9, n))
        assert quantile_bounds(samples).n_eff == n


def test_p99_has_an_upper_bound_from_299_on() -> None:
    """298 independent samples have no upper bound of p99, 299 have their maximum."""
    assert N_EFF_FOR_P99 == 299
    samples = np.random.default_rng(298).permutation(np.linspace(0.1, 0.9, 299))
    assert quantile_bounds(samples[:298]).upper is None
    assert quantile_bounds(samples).upper == pytest.approx(0.9)


@pytest.mark.parametrize("step", [0.0, 0.01])
def test_clustered_samples_lose_their_upper_bound(step: float) -> None:
    """Six hundred samples whose slow ones come in one cluster, equal or not, make no p99."""
    samples = np.random.default_rng(3).uniform(0.1, 0.2, 600)
    samples[300:320] = 0.5 + step * np.arange(20)
    found = quantile_bounds(samples)
    assert found.n == 600
    assert found.n_eff < N_EFF_FOR_P99
    assert found.upper is None
    assert found.lower is not None


def test_other_quantiles_need_fewer_samples() -> None:
    """p95 has an upper bound from 59 independent samples on, the median from 5."""
    apart = [float(17 * i % 59) for i in range(59)]
    assert quantile_bounds(apart, 0.95).upper == 58.0
    assert quantile_bounds(apart[:58], 0.95).upper is None
    assert quantile_bounds([1.0, 5.0, 2.0, 4.0, 3.0], 0.5).upper == 5.0


def test_nothing_is_made_up_for_no_samples() -> None:
    """An empty window has neither estimate nor bounds."""
    found = quantile_bounds([])
    assert (found.estimate, found.lower, found.upper, found.n) == (None, None, None, 0)


def test_equal_samples_are_their_own_bounds() -> None:
    """A constant has no exceedances, so no autocorrelation, and all bounds are the constant."""
    found = quantile_bounds([0.25] * 400)
    assert (found.estimate, found.lower, found.upper) == (0.25, 0.25, 0.25)
    assert found.n_eff == 400


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=400))
def test_bounds_enclose_the_estimate_and_come_from_the_samples(samples: list[float]) -> None:
    """Bounds are samples, never interpolated, and lie on their side of the estimate."""
    found = quantile_bounds(samples)
    assert found.estimate in samples
    if found.lower is not None:
        assert found.lower in samples
        assert found.lower <= found.estimate
    if found.upper is not None:
        assert found.upper in samples
        assert found.upper >= found.estimate


@pytest.mark.parametrize(("n", "phi"), [(400, 0.0), (1000, 0.3), (1000, 0.6)])
def test_one_sided_bounds_cover_under_autocorrelation(n: int, phi: float) -> None:
    """Each bound holds in about 95 % of repetitions, also when steps depend on the one before."""
    repeats = 400
    samples = ar1(n, phi, np.random.default_rng(20261201), repeats)
    below = above = 0
    for row in samples:
        found = quantile_bounds(row)
        below += found.lower is None or found.lower <= P99_OF_NORMAL
        above += found.upper is None or found.upper >= P99_OF_NORMAL
    # 0.95 less two standard errors of 400 repetitions (0.011 each).
    assert below / repeats >= 0.928
    assert above / repeats >= 0.94


@pytest.mark.soak
def test_bounds_cover_under_strong_autocorrelation() -> None:
    """AR(1) of 0.6, 5,000 steps, 2,000 repetitions: each bound, and both at 97.5 %, cover 0.93."""
    rng, repeats = np.random.default_rng(20261202), 2000
    below = above = both = 0
    for _ in range(repeats):
        (row,) = ar1(5000, 0.6, rng, 1)
        found, wide = quantile_bounds(row), quantile_bounds(row, confidence=0.975)
        assert found.lower is not None
        assert found.upper is not None
        assert wide.lower is not None
        assert wide.upper is not None
        below += found.lower <= P99_OF_NORMAL
        above += found.upper >= P99_OF_NORMAL
        both += wide.lower <= P99_OF_NORMAL <= wide.upper
    print(f"lower {below / repeats}, upper {above / repeats}, two-sided {both / repeats}")
    assert below / repeats >= 0.93
    assert above / repeats >= 0.93
    assert both / repeats >= 0.93


def test_bounds_that_ignore_autocorrelation_would_not_cover() -> None:
    """The effective size is needed: with n in its place the upper bound covers too rarely."""
    repeats, n = 200, 2000
    samples = ar1(n, 0.9, np.random.default_rng(7), repeats)
    rank = next(
        k for k in range(n, 0, -1) if _binomial_at_most(n, k - 2) < 0.95
    )  # smallest rank that covers with independent samples
    naive = np.sort(samples, axis=1)[:, rank - 1]
    assert (naive >= P99_OF_NORMAL).mean() < 0.9
    ours = [quantile_bounds(row).upper for row in samples]
    assert np.mean([u is None or u >= P99_OF_NORMAL for u in ours]) > 0.9


def _binomial_at_most(n: int, k: int) -> float:
    """P(Binomial(n, 0.99) <= k), by the complement that has few terms."""
    return 1 - sum(math.comb(n, j) * 0.99**j * 0.01 ** (n - j) for j in range(k + 1, n + 1))


def test_bounds_of_a_size_are_worked_out_once() -> None:
    """Which ranks bound a quantile follows from size and quantile alone, and is remembered."""
    samples = np.random.default_rng(3).random(777)
    quantile_bounds(samples, 0.97)
    before = bounds._binomial_tail_index.cache_info()
    quantile_bounds(samples[::-1], 0.97)
    after = bounds._binomial_tail_index.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (2, 0)
