"""Quantiles with bounds, from samples that depend on each other.

Contract: order statistics only, no distribution assumed. Bounds are one-sided at 95 % and use the
effective sample size, from the autocorrelation of the exceedance indicator: two slow steps in a
row say less than two apart. Below an effective sample size of 299 the p99 has no upper bound, and
none is made up.

Source of the method: exact binomial bounds for order statistics; coverage under AR(1) samples is
checked in the tests.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tailwatch.verdicts import Quantile

CONFIDENCE = 0.95
N_EFF_FOR_P99 = math.ceil(math.log(1 - CONFIDENCE) / math.log(0.99))


def effective_size(samples: NDArray[np.float64], quantile: float) -> float:
    """Return the number of independent samples that say as much about a quantile as these do.

    `n / (1 + 2 * sum(rho_k))` over the autocorrelations of `samples > quantile`, up to the first
    one below 0.05; of `samples >= quantile` when none lies above. Shape of `samples`: (n,), in
    order of time.
    """
    n = len(samples)
    if n < 3:
        return float(n)
    above = samples > quantile
    if not above.any():
        # Ties at the quantile: none lies above it, and the equal ones are the slow ones.
        above = samples >= quantile
    exceeds = above.astype(np.float64)
    centred = exceeds - exceeds.mean()
    variance = float(centred @ centred)
    if variance == 0.0:
        return float(n)
    total = 0.0
    for lag in range(1, n // 2):
        rho = float(centred[:-lag] @ centred[lag:]) / variance
        if rho < 0.05:
            break
        total += rho
    return n / (1 + 2 * total)


# The same few sizes come back every second; each costs up to n logarithms.
@functools.lru_cache(maxsize=4096)
def _binomial_tail_index(n: int, q: float, probability: float) -> int:
    """Return the smallest k with P(Binomial(n, q) <= k) >= probability."""
    log_q, log_p = math.log(q), math.log1p(-q)
    cumulative = 0.0
    for k in range(n + 1):
        log_pmf = (
            math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
            + k * log_q + (n - k) * log_p
        )  # fmt: skip
        cumulative += math.exp(log_pmf)
        if cumulative >= probability:
            return k
    return n


def quantile_bounds(
    samples: Sequence[float] | NDArray[np.float64], q: float = 0.99, confidence: float = CONFIDENCE
) -> Quantile:
    """Return the q-quantile with its one-sided lower and upper bound, in the samples' unit.

    The estimate is the order statistic of rank ceil(q * n). The bounds are the order statistics
    whose rank, in a sample of n_eff, covers the quantile with `confidence` each (both together hold
    with 2 * confidence - 1); a bound that does not exist is None.
    """
    values = np.asarray(samples, dtype=np.float64)
    n = len(values)
    if n == 0:
        return Quantile(estimate=None, lower=None, upper=None, n=0, n_eff=0.0)
    ordered = np.sort(values)
    estimate = float(ordered[min(n, math.ceil(q * n)) - 1])
    n_eff = effective_size(values, estimate)
    size = max(int(n_eff), 1)
    # X_(k) <= quantile with `confidence`: the number of samples at or below the quantile is >= k.
    lower_rank = _binomial_tail_index(size, q, 1 - confidence)
    upper_rank = _binomial_tail_index(size, q, confidence) + 1
    lower = upper = None
    if lower_rank >= 1:
        lower = float(ordered[max(math.floor(lower_rank / size * n), 1) - 1])
    if upper_rank <= size:
        upper = float(ordered[min(math.ceil(upper_rank / size * n), n) - 1])
    return Quantile(estimate=estimate, lower=lower, upper=upper, n=n, n_eff=n_eff)
