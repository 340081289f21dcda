"""Statistics of step times that say how sure they are."""

from tailwatch.statistics.bounds import (
    CONFIDENCE,
    N_EFF_FOR_P99,
    effective_size,
    quantile_bounds,
)
from tailwatch.statistics.summary import N_FOR_P999, Summary, summarise
from tailwatch.statistics.window import RING_SAMPLES, LongHorizon, Window

__all__ = [
    "CONFIDENCE",
    "N_EFF_FOR_P99",
    "N_FOR_P999",
    "RING_SAMPLES",
    "LongHorizon",
    "Summary",
    "Window",
    "effective_size",
    "quantile_bounds",
    "summarise",
]
