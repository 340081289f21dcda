"""Step time over the whole run, with everything that happened to the job drawn on it.

Contract: the upper panel has one dot per job step on a logarithmic axis, the running p95, the
p99 band of the baseline and the fault windows; the lanes below share its time axis: alerts as the
receiver got them, restarts, checkpoints. Dots above the axis are drawn at its upper edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailwatch.report import ink
from tailwatch.report.history import Floats, History, Span
from tailwatch.report.ink import Ink
from tailwatch.report.units import step_time
from tailwatch.verdicts import Quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 960
TAIL_OVER = 30
_ROLE_INK = {
    "expected": Ink.BLUE,
    "allowed": Ink.GREEN,
    "forbidden": Ink.RED,
    "unlisted": Ink.PURPLE,
}


def timeline_chart(history: History, baseline: Quantile | None) -> str:
    """Return the chart as SVG; the history has at least one step."""
    lanes = [*history.alert_names(), "new attempts", "checkpoints"]
    lanes_height = 26 + 17 * len(lanes)
    height = 330 + lanes_height
    with ink.style():
        figure = ink.figure(WIDTH, height)
        top, lower = figure.subplots(2, 1, sharex=True, height_ratios=[330 - 56, lanes_height - 26])
        figure.subplots_adjust(
            left=0.155, right=0.915, top=1 - 42 / height, bottom=34 / height, hspace=0.06
        )
        limits = _time_limits(history)
        _steps(top, history, baseline)
        _faults(top, lower, history.faults, limits)
        _lanes(lower, history, lanes, limits)
        lower.set_xlim(*limits)
        lower.set_xlabel("seconds since the run started")
        return ink.inline_svg(figure, "timeline", _description(history))


def _description(history: History) -> str:
    faults = ", ".join(span.name for span in history.faults) or "no fault"
    return (
        f"Step time of {len(history.seconds)} steps over the run, with fault windows ({faults}), "
        "alerts, restarts and checkpoints."
    )


def _time_limits(history: History) -> tuple[float, float]:
    """From the first thing to the last, so that bars at the edges stay inside."""
    ends = [float(history.start[-1] + history.seconds[-1]), history.end]
    low = min(0.0, float(history.start[0]))
    high = max(ends)
    return low, high + 0.01 * (high - low)


def _steps(axes: Axes, history: History, baseline: Quantile | None) -> None:
    at, value = history.start + history.seconds, history.seconds
    low, high = _robust_limits(value, baseline)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    limit = baseline.upper if baseline is not None else None
    over = value > limit if limit is not None else np.zeros(len(value), dtype=bool)
    if baseline is not None and baseline.estimate is not None:
        edge = baseline.upper if baseline.upper is not None else baseline.estimate
        axes.axhspan(
            baseline.lower or baseline.estimate, edge, color=Ink.MUTED, alpha=0.22, linewidth=0
        )
        axes.axhline(baseline.estimate, color=Ink.MUTED, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.annotate(
            f"baseline p99\n{step_time(baseline.estimate)}",
            (1.0, baseline.estimate),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            fontsize=8,
            color=Ink.MUTED,
            annotation_clip=False,
        )
    shown = np.clip(value, low * 1.02, high * 0.97)
    _dots(axes, at[~over], shown[~over], Ink.BLUE, 0.5)
    _dots(axes, at[over], shown[over], Ink.ORANGE, 0.95)
    for piece in history.attempt_slices():
        if piece.stop - piece.start >= TAIL_OVER:
            tail = np.clip(running_p95(value[piece]), low, high)
            axes.plot(at[piece], tail, color=Ink.TEXT, linewidth=1.1)
    ticks = [t for t in _NICE if low <= t <= high]
    axes.set_yticks(ticks, [f"{t * 1e3:g} ms" if t < 1 else f"{t:g} s" for t in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylabel("time of one step")
    ink.grid(axes)


_NICE = [base * 10.0**power for power in range(-4, 3) for base in (1, 2, 5)]


def _robust_limits(value: Floats, baseline: Quantile | None) -> tuple[float, float]:
    """The axis holds all but the oddest 1 in 1,000, and the baseline's bounds."""
    low, high = float(np.quantile(value, 0.001)), float(np.quantile(value, 0.999))
    if baseline is not None and baseline.estimate is not None:
        high = max(high, baseline.upper or baseline.estimate)
        low = min(low, baseline.lower or baseline.estimate)
    return max(low, 1e-5) / 1.25, max(high, 1e-5) * 1.35


def _dots(axes: Axes, x: Floats, y: Floats, colour: str, alpha: float) -> None:
    """Draw all points as one path of round caps: 14 bytes a point instead of 90."""
    if not len(x):
        return
    gap = np.full(len(x), np.nan)
    axes.plot(
        np.column_stack([x, x, gap]).ravel(),
        np.column_stack([y, y, gap]).ravel(),
        color=colour,
        alpha=alpha,
        linewidth=2.4,
        solid_capstyle="round",
    )


def running_p95(value: Floats) -> Floats:
    """Return the p95 of the last `TAIL_OVER` steps at each; of those there are at the start.

    A median would jump here: steps with and without a rollout take very different times.
    """
    padded = np.pad(value, (TAIL_OVER - 1, 0), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, TAIL_OVER)
    return np.asarray(np.nanquantile(windows, 0.95, axis=1, method="inverted_cdf"))


def _faults(top: Axes, lower: Axes, faults: list[Span], limits: tuple[float, float]) -> None:
    """Shade each fault through both panels; names stand above, in a second row where they meet."""
    least = (limits[1] - limits[0]) / 400
    row_ends = [-np.inf, -np.inf]
    per_character = (limits[1] - limits[0]) * 5.2 / (WIDTH * 0.72 * 0.83)
    for number, fault in enumerate(faults, start=1):
        end = limits[1] if fault.end is None else fault.end
        for axes in (top, lower):
            axes.axvspan(
                fault.start, max(end, fault.start + least), color=Ink.RED, alpha=0.16, linewidth=0
            )
            axes.axvline(fault.start, color=Ink.RED, linewidth=0.8)
        label = f"{number} {fault.name}"
        width = per_character * len(label)
        x = min(fault.start, limits[1] - width)
        row = 0 if x >= row_ends[0] else 1
        row_ends[row] = x + width
        top.annotate(
            label,
            (x, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4 + 12 * row),
            textcoords="offset points",
            fontsize=8.5,
            fontweight="bold",
            color=Ink.RED,
            annotation_clip=False,
        )


def _lanes(axes: Axes, history: History, lanes: list[str], limits: tuple[float, float]) -> None:
    rows = {name: index for index, name in enumerate(lanes)}
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    for row in range(len(lanes)):
        axes.axhline(row, color=Ink.LINE, linewidth=0.6)
    least = (limits[1] - limits[0]) / 300
    for alert in history.alerts:
        end = limits[1] if alert.end is None else alert.end
        axes.barh(
            rows[alert.name],
            max(end - alert.start, least),
            left=alert.start,
            height=0.56,
            color=_ROLE_INK.get(alert.role, Ink.PURPLE),
            linewidth=0,
            zorder=3,
        )
        if alert.end is None:
            axes.annotate(
                "not resolved",
                (limits[1], rows[alert.name]),
                xytext=(-3, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=7.5,
                color=Ink.SURFACE,
            )
    for restart in history.restarts:
        axes.plot(
            [restart.at], [rows["new attempts"]], marker="v", color=Ink.TEXT, markersize=5, mew=0
        )
        axes.annotate(
            f"{restart.attempt}",
            (restart.at, rows["new attempts"]),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=Ink.MUTED,
        )
    for marks, marker, colour in (
        ([c.at for c in history.checkpoints if not c.refused], "|", Ink.GREEN),
        ([c.at for c in history.checkpoints if c.refused], "x", Ink.RED),
    ):
        axes.plot(
            marks,
            [rows["checkpoints"]] * len(marks),
            linestyle="none",
            marker=marker,
            color=colour,
            markersize=6,
            mew=1.3,
        )
