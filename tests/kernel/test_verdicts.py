"""Verdicts, their order and their exit codes."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from tailwatch.verdicts import EXIT_CODES, SEVERITY, Verdict, rfc3339, worst

ORDER_OF_CODES = [5, 4, 1, 3, 0]


def test_every_verdict_has_a_place_and_an_exit_code() -> None:
    """No verdict is forgotten in the tables."""
    assert set(SEVERITY) == set(EXIT_CODES) == set(get_args(Verdict))


def test_the_worst_of_two_has_the_worse_exit_code() -> None:
    """Of several verdicts the exit code is the worst in the order 5, 4, 1, 3, 0."""
    for one, other in itertools.product(SEVERITY, repeat=2):
        codes = [EXIT_CODES[one], EXIT_CODES[other]]
        assert EXIT_CODES[worst([one, other])] == min(codes, key=ORDER_OF_CODES.index)


def test_no_verdict_at_all_is_no_pass() -> None:
    """A game day without an experiment is INCONCLUSIVE."""
    assert worst([]) == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_796_119_200_123_456_789, "2026-12-01T10:00:00.123456Z"),
        (1_796_119_200_999_999_999, "2026-12-01T10:00:00.999999Z"),
    ],
)
def test_times_are_utc_with_microseconds(time_ns: int, text: str) -> None:
    """Wall times are RFC 3339 UTC, cut to microseconds and always with the fraction."""
    assert rfc3339(time_ns) == text
