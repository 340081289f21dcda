"""Numbers, times and quantiles as text: each with its unit, and with an interval or its n.

Contract: nothing here turns an unknown value into a number; a missing value is the word
"unknown", and the caller says why. The same functions serve the page, the terminal and the tests.
"""

from __future__ import annotations

import datetime as dt

from tailwatch.verdicts import Quantile

UNKNOWN = "unknown"
THIN = "\N{NARROW NO-BREAK SPACE}"


def parse_time(text: str | None) -> float | None:
    """Return Unix seconds of an RFC 3339 time; None when there is none or it is not one."""
    if text is None:
        return None
    try:
        return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def clock(text: str | None) -> str:
    """Return the time of day of an RFC 3339 time to a tenth of a second, without the zone."""
    at = parse_time(text)
    if at is None:
        return UNKNOWN
    moment = dt.datetime.fromtimestamp(round(at, 1), dt.UTC)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 100_000}"


def date_and_time(text: str | None) -> str:
    """Return an RFC 3339 time as a date and a time of day in UTC, for people."""
    at = parse_time(text)
    return UNKNOWN if at is None else f"{dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%d %H:%M:%S}"


def seconds(value: float | None) -> str:
    """Return a duration in seconds with the unit that reads best, three digits at most."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 120:
        minutes, rest = divmod(round(size), 60)
        sign = "-" if value < 0 else ""
        return f"{sign}{minutes}{THIN}min {rest}{THIN}s"
    if size >= 1:
        return f"{value:.1f}{THIN}s"
    return f"{milliseconds(value)}{THIN}ms"


def milliseconds(value: float) -> str:
    """Return a duration in seconds as the bare number of milliseconds, three digits at most."""
    scaled = value * 1e3
    return f"{scaled:.1f}" if abs(scaled) < 99.95 else f"{scaled:.0f}"


def step_time(value: float | None) -> str:
    """Return a step time in seconds as milliseconds, so that columns of them compare."""
    return UNKNOWN if value is None else f"{milliseconds(value)}{THIN}ms"


def interval(quantile: Quantile) -> str:
    """Return the bounds of a quantile of step times; a bound that does not exist is named so."""
    if quantile.estimate is None:
        return "no samples"
    if quantile.lower is None and quantile.upper is None:
        return "no bounds"
    if quantile.upper is None:
        return f"\N{GREATER-THAN OR EQUAL TO}{THIN}{step_time(quantile.lower)}"
    if quantile.lower is None:
        return f"\N{LESS-THAN OR EQUAL TO}{THIN}{step_time(quantile.upper)}"
    low, high = milliseconds(quantile.lower), milliseconds(quantile.upper)
    return f"{low} to {high}{THIN}ms"


def sample_size(quantile: Quantile) -> str:
    """Return the number of steps behind a quantile, and of independent ones."""
    return f"n = {quantile.n:,}, n_eff = {quantile.n_eff:.0f}"


def deadline(value: float) -> str:
    """Return a planned duration in seconds as it was planned, without made-up digits."""
    return f"{value:g}{THIN}s"


def bounds_note(named: list[tuple[str, Quantile | None]]) -> str:
    """Return why some p99 of these have no upper bound, or nothing when all have one."""
    from tailwatch.statistics import N_EFF_FOR_P99

    without = [(n, q) for n, q in named if q and q.estimate is not None and q.upper is None]
    if not without:
        return ""
    names = " and ".join(name for name, _ in without)
    sizes = " and ".join(f"{quantile.n_eff:.0f}" for _, quantile in without)
    return (
        f"No upper bound for p99 {names}: that takes n_eff of at least {N_EFF_FOR_P99}, "
        f"there are {sizes}."
    )


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where English wants it."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
