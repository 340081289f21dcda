"""The distribution of step time before, during and after one fault, as cumulative curves.

Contract: one curve per window, each with its own line style so that colour is not needed; p50,
p95 and p99 are marked on each. The axis is logarithmic and the upper half is stretched (its unit
is the share of steps slower than x), because the tail is what the page is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailwatch.report import ink
from tailwatch.report.history import Window
from tailwatch.report.ink import Ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 520, 300
_LOOK = {
    "before": (Ink.BLUE, "solid", "o"),
    "during": (Ink.RED, (0, (5, 1.5)), "s"),
    "after": (Ink.GREEN, (0, (1.2, 1.2)), "^"),
}
_MARKED = (0.50, 0.95, 0.99)
_MOST_POINTS = 400


def ecdf_chart(name: str, title: str, windows: list[Window]) -> str:
    """Return the chart as SVG; at least one window has steps."""
    with ink.style():
        figure = ink.figure(WIDTH, HEIGHT)
        axes = figure.subplots()
        figure.subplots_adjust(left=0.115, right=0.97, top=0.97, bottom=0.155)
        axes.set_xscale("log")
        axes.set_yscale("log")
        floor = 1 / (1.6 * max(len(w.seconds) for w in windows))
        for window in windows:
            if len(window.seconds):
                _curve(axes, window, floor)
        axes.set_yticks(
            [1, 0.5, 0.1, 0.05, 0.01, 0.001], ["0 %", "50 %", "90 %", "95 %", "99 %", "99.9 %"]
        )
        axes.set_ylim(1.25, min(floor, 0.004))
        axes.set_yticks([], minor=True)
        low, high = axes.get_xlim()
        nice = [b * 10.0**p for p in range(-4, 3) for b in (1, 2, 3, 5, 7)]
        ticks = [t for t in nice if low <= t <= high]
        if len(ticks) > 9:
            ticks = [t for t in ticks if f"{t:e}"[0] in "125"]
        axes.set_xticks(ticks, [f"{t * 1e3:g} ms" if t < 1 else f"{t:g} s" for t in ticks])
        axes.set_xticks([], minor=True)
        ink.grid(axes, "both")
        axes.set_xlabel("time of one step")
        axes.set_ylabel("share of steps that took less")
        axes.legend(loc="upper left")
        return ink.inline_svg(figure, name, f"Distribution of step time: {title}.")


def _curve(axes: Axes, window: Window, floor: float) -> None:
    colour, line, marker = _LOOK[window.name]
    ordered = np.sort(window.seconds)
    n = len(ordered)
    keep = _thin(n)
    slower = np.maximum(1 - (keep + 1) / n, floor)
    x = np.concatenate([[ordered[0]], ordered[keep]])
    y = np.concatenate([[1.0], slower])
    axes.step(
        x, y, where="post", color=colour, linestyle=line, linewidth=1.6,
        label=f"{window.name}, n = {n}",
    )  # fmt: skip
    marks = [ordered[min(n, int(np.ceil(q * n))) - 1] for q in _MARKED]
    axes.plot(
        marks, [1 - q for q in _MARKED], linestyle="none", marker=marker, color=colour,
        markersize=4.6, mew=0,
    )  # fmt: skip


def _thin(n: int) -> np.ndarray:
    """Indices of at most about `_MOST_POINTS` order statistics, the slowest hundred all kept."""
    if n <= _MOST_POINTS:
        return np.arange(n)
    body = np.linspace(0, n - 100, _MOST_POINTS - 100, endpoint=False).astype(int)
    return np.concatenate([body, np.arange(n - 100, n)])
