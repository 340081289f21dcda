"""Summaries of windows, the exact ring and the mergeable histogram."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch.statistics import N_FOR_P999, RING_SAMPLES, LongHorizon, Window, summarise


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 100), min_size=2, max_size=200))
def test_summary_is_what_the_standard_library_says(samples: list[float]) -> None:
    """Mean, trimmed mean, MAD, CV and maximum are those of plain formulas."""
    found = summarise(samples)
    ordered = sorted(samples)
    cut = len(samples) // 10
    median = statistics.median(samples)
    assert found.mean == pytest.approx(statistics.fmean(samples))
    assert found.trimmed_mean == pytest.approx(statistics.fmean(ordered[cut : len(ordered) - cut]))
    assert found.mad == pytest.approx(statistics.median(abs(s - median) for s in samples))
    assert found.cv == pytest.approx(statistics.pstdev(samples) / statistics.fmean(samples))
    assert found.max == ordered[-1]
    assert found.p50.estimate == ordered[math.ceil(len(samples) / 2) - 1]


def test_refusal_says_why() -> None:
    """Below an effective size of 299 p99 has no upper bound and the reason names both numbers."""
    few = np.random.default_rng(1).permutation(np.linspace(1, 2, 298))
    found = summarise(few)
    assert found.p99.upper is None
    assert found.refusal is not None
    assert "298 of 298 samples" in found.refusal
    assert "299" in found.refusal
    assert summarise(np.random.default_rng(1).permutation(np.linspace(1, 2, 299))).refusal is None


def test_clustered_samples_are_refused_with_their_effective_size() -> None:
    """A thousand samples whose slow ones come together refuse, too."""
    samples = np.random.default_rng(3).uniform(1, 2, 1000)
    samples[500:530] = 5 + 0.01 * np.arange(30)
    refusal = summarise(samples).refusal
    assert refusal is not None
    assert "of 1000 samples" in refusal


def test_p999_from_twenty_thousand_on() -> None:
    """One sample fewer has none."""
    samples = np.random.default_rng(2).random(N_FOR_P999)
    assert summarise(samples[1:]).p999 is None
    assert summarise(samples).p999 == pytest.approx(0.999, abs=0.001)


def test_no_samples_and_no_numbers() -> None:
    """Nothing is a summary of nothing; NaN is refused with its place."""
    nothing = summarise([])
    assert (nothing.n, nothing.mean, nothing.p99.estimate) == (0, None, None)
    assert nothing.refusal == "no samples"
    with pytest.raises(ValueError, match="sample 1 is nan"):
        summarise([1.0, math.nan])


def test_window_keeps_the_newest_in_order() -> None:
    """A ring of 4,096: of 5,000 samples the last ones are there, oldest first."""
    window = Window()
    for i in range(5000):
        window.add(float(i))
    assert len(window) == RING_SAMPLES
    assert window.values().tolist() == [float(i) for i in range(5000 - RING_SAMPLES, 5000)]
    short = Window(8)
    short.add(1.0)
    assert short.values().tolist() == [1.0]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_what_is_no_duration_is_refused(wrong: float) -> None:
    """NaN, infinite and negative samples poison neither memory."""
    for memory in (Window(8), LongHorizon()):
        with pytest.raises(ValueError, match="no duration"):
            memory.add(wrong)
        assert len(memory) == 0


def test_long_horizon_is_exact_to_three_digits_and_mergeable() -> None:
    """A p99 beside a gap is right to 0.1 %, and two halves merged are the whole."""
    rng = np.random.default_rng(5)
    samples = np.where(
        rng.random(20_000) < 0.015, rng.normal(30, 0.3, 20_000), rng.normal(10, 0.2, 20_000)
    )
    whole, first, second = LongHorizon(), LongHorizon(), LongHorizon()
    for i, sample in enumerate(samples.tolist()):
        whole.add(sample)
        (first if i % 2 else second).add(sample)
    second.merge(LongHorizon(first.encode()))
    exact = float(np.quantile(samples, 0.99, method="inverted_cdf"))
    assert len(second) == len(whole) == 20_000
    assert whole.quantile(0.99) == pytest.approx(exact, rel=0.001)
    assert second.quantile(0.99) == whole.quantile(0.99)
    assert len(whole.encode()) < 8192


def test_long_horizon_without_samples_and_from_nonsense() -> None:
    """Empty has no quantile; nonsense is no histogram; more than an hour counts as an hour."""
    assert LongHorizon().quantile(0.5) is None
    with pytest.raises(ValueError, match="no encoded histogram"):
        LongHorizon(b"nonsense")
    long = LongHorizon()
    long.add(1e9)
    assert long.quantile(0.5) == pytest.approx(3600, rel=0.001)
