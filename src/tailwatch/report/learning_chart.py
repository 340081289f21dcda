"""Did the job still learn: reward over the GRPO steps, loss over the supervised ones.

Contract: each attempt is a line of its own, so steps computed again after a restart lie on top of
the ones they replace; dots are single steps, the line is their running mean within an attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tailwatch.report import ink
from tailwatch.report.history import History
from tailwatch.report.ink import Ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 960, 250
MEAN_OVER = 25


def learning_chart(history: History) -> str | None:
    """Return the chart as SVG; None when no step has a reward or a loss of its stage."""
    panels = [
        (title, unit, mask, values, colour)
        for title, unit, mask, values, colour in (
            ("Supervised steps", "loss", history.stage == "sft", history.loss, Ink.PURPLE),
            ("GRPO steps", "reward", history.stage == "grpo", history.reward, Ink.GREEN),
        )
        if np.isfinite(values[mask]).any()
    ]
    if not panels:
        return None
    with ink.style():
        figure = ink.figure(WIDTH, HEIGHT)
        ratios = [0.3, 0.7] if len(panels) == 2 else [1.0]
        row = figure.subplots(1, len(panels), width_ratios=ratios, squeeze=False)[0]
        figure.subplots_adjust(left=0.06, right=0.985, top=0.88, bottom=0.17, wspace=0.16)
        for axes, (title, unit, mask, values, colour) in zip(row, panels, strict=True):
            _panel(axes, history, mask, values, colour)
            axes.set_title(f"{title}: {unit}")
        return ink.inline_svg(figure, "learning", _description([p[1] for p in panels]))


def _description(units: list[str]) -> str:
    return f"{' and '.join(units).capitalize()} of each step over the run, one line per attempt."


def _panel(
    axes: Axes,
    history: History,
    mask: NDArray[np.bool_],
    values: NDArray[np.float64],
    colour: str,
) -> None:
    known = mask & np.isfinite(values)
    for index, piece in enumerate(history.attempt_slices()):
        inside = known[piece]
        x = history.step[piece][inside]
        y = values[piece][inside]
        if not len(x):
            continue
        axes.plot(
            x, y, linestyle="none", marker="o", markersize=2.2, mew=0, color=colour, alpha=0.35
        )
        axes.plot(x, running_mean(y), color=colour, linewidth=1.6)
        if index:
            axes.axvline(float(x[0]), color=Ink.MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
            axes.annotate(
                f"{history.attempt[piece.start]}", (float(x[0]), 1.0),
                xycoords=("data", "axes fraction"), xytext=(2, -8), textcoords="offset points",
                fontsize=7.5, color=Ink.MUTED,
            )  # fmt: skip
    axes.set_xlabel("step")
    ink.grid(axes)


def running_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the `MEAN_OVER` values around each place; fewer at both ends."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    places, half = np.arange(len(values)), MEAN_OVER // 2
    starts = np.maximum(places - half, 0)
    ends = np.minimum(places + half + 1, len(values))
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))
