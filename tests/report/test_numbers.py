"""The numbers of the page are those of the verdict and of the step log."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tailwatch.evidence import EvidenceDirectory
from tailwatch.records import StepRecord
from tailwatch.report import units
from tailwatch.report.heatmap_chart import binned
from tailwatch.report.history import read_history
from tailwatch.report.learning_chart import MEAN_OVER, running_mean
from tailwatch.report.timeline_chart import TAIL_OVER, running_p95
from tailwatch.report.windows import windows
from tailwatch.statistics import quantile_bounds
from tailwatch.steplog import read_steplog
from tailwatch.verdicts import Quantile

if TYPE_CHECKING:
    from report.conftest import Reported


def test_drawn_windows_are_those_of_the_verdict(reported: Reported) -> None:
    """The curves hold exactly the steps whose p99 stands in report.json."""
    history = read_history(EvidenceDirectory(reported.evidence), reported.document)
    for outcome in reported.document.experiments:
        assert outcome.p99 is not None
        judged = (outcome.p99.baseline, outcome.p99.during, outcome.p99.after)
        for window, quantile in zip(windows(history, outcome), judged, strict=True):
            assert quantile == quantile_bounds(window.seconds), (outcome.name, window.name)


def test_p99_and_n_come_out_of_the_step_log_again(reported: Reported) -> None:
    """Ten lines of numpy on the raw records give the p99 and n of report.json."""
    slowest: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for path in sorted((reported.evidence / "steps").glob("*.steplog")):
        for r in read_steplog(path):
            if isinstance(r, StepRecord) and r.stage == "grpo" and not r.warmup:
                slowest.setdefault((r.attempt, r.step), []).append((r.duration_ns, r.start_ns))
    steps = np.array([(min(s for _, s in v), max(d for d, _ in v)) for v in slowest.values()])
    slow = reported.document.experiments[0]
    begin, end = (1e9 * (units.parse_time(t) or 0) for t in (slow.injected_at, slow.undone_at))
    during = steps[(steps[:, 0] >= begin) & (steps.sum(axis=1) <= end), 1] / 1e9
    assert slow.p99 is not None
    assert slow.p99.during is not None
    assert slow.p99.during.n == len(during)
    expected = np.sort(during)[math.ceil(0.99 * len(during)) - 1]
    assert slow.p99.during.estimate == pytest.approx(expected)


def test_heat_map_shows_the_slow_rank_in_its_row(reported: Reported) -> None:
    """While a rank is slowed its row is the brightest by far, and a rank that left is empty."""
    history = read_history(EvidenceDirectory(reported.evidence), reported.document)
    slow, drain = history.faults[0], history.faults[3]
    assert slow.end is not None
    assert drain.end is not None
    inside = (history.start > slow.start) & (history.start + history.seconds < slow.end)
    rows = history.late[:, inside].mean(axis=1)
    assert history.ranks[int(rows.argmax())] == 3
    assert rows.max() > 10 * np.sort(rows)[-2]
    away = (history.start > drain.start + 3) & (history.start + history.seconds < drain.end)
    assert np.isnan(history.late[2:, away]).all()


def test_bins_are_means_of_what_is_there() -> None:
    """A bin is the mean of its known cells; a bin without one is not a number, never 0."""
    late = np.array([[1.0, 3.0, np.nan, 5.0, np.nan, np.nan], [0.0, 0.0, 2.0, 2.0, 4.0, 8.0]])
    cells, edges = binned(late, 3)
    assert edges.tolist() == [0, 2, 4, 6]
    np.testing.assert_array_equal(cells, [[2.0, 5.0, np.nan], [0.0, 2.0, 6.0]])


def test_running_lines_match_their_slow_reference() -> None:
    """The drawn p95 and mean are what a loop over the steps gives."""
    values = np.random.default_rng(1).gamma(2.0, 0.1, 120)
    half = MEAN_OVER // 2
    for place in range(len(values)):
        last = np.sort(values[max(0, place - TAIL_OVER + 1) : place + 1])
        assert running_p95(values)[place] == last[math.ceil(0.95 * len(last)) - 1]
        around = values[max(0, place - half) : place + half + 1]
        assert running_mean(values)[place] == pytest.approx(around.mean())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0.0, "0.0 ms"),
        (0.0123, "12.3 ms"),
        (0.25, "250 ms"),
        (6.24, "6.2 s"),
        (119.96, "120.0 s"),
        (172.2, "2 min 52 s"),
        (-1.5, "-1.5 s"),
    ],
)
def test_durations_have_the_unit_that_reads_best(value: float | None, text: str) -> None:
    """A duration reads as people say it, and one that is not known is a word."""
    assert units.seconds(value).replace(units.THIN, " ") == text


@pytest.mark.parametrize(
    ("lower", "upper", "text"),
    [
        (0.1, 0.2, "100 to 200 ms"),
        (0.1, None, "≥ 100 ms"),
        (None, 0.2, "≤ 200 ms"),
        (None, None, "no bounds"),
    ],
)
def test_a_bound_that_does_not_exist_is_not_made_up(
    lower: float | None, upper: float | None, text: str
) -> None:
    """One missing bound leaves a one-sided interval, two leave none."""
    quantile = Quantile(estimate=0.15, lower=lower, upper=upper, n=50, n_eff=50.0)
    assert units.interval(quantile).replace(units.THIN, " ") == text


def test_times_are_utc_to_a_tenth_of_a_second() -> None:
    """A time of day is rounded, also over the full second."""
    assert units.clock("2026-12-01T10:00:59.960000Z") == "10:01:00.0"
    assert units.clock(None) == "unknown"
    assert units.clock("yesterday") == "unknown"
