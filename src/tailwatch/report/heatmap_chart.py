"""Which rank was late, when: ranks x steps, each cell the mean lateness of its steps.

Contract: steps stand in the order in which they ran, so a step computed again after a restart
stands twice; attempts are marked. A cell without a rank is empty, not zero. The colour scale goes
with the square root and ends at the 99.5 % quantile of the cells: small lateness shows beside
large, and one odd step does not pale the rest. The cells are one
small picture inside the SVG.
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

WIDTH = 960
MOST_BINS = 240


def heatmap_chart(history: History) -> str:
    """Return the chart as SVG; the history has at least one step."""
    cells, edges = binned(history.late, MOST_BINS)
    known = cells[np.isfinite(cells)]
    top = max(float(np.quantile(known, 0.995)) if len(known) else 0.0, 1e-3)
    ranks = len(history.ranks)
    body = min(max(26 * ranks, 60), 420)
    height = body + 78
    from matplotlib.colors import PowerNorm

    with ink.style():
        figure = ink.figure(WIDTH, height)
        axes = figure.subplots()
        figure.subplots_adjust(left=0.155, right=0.915, top=1 - 30 / height, bottom=44 / height)
        picture = axes.imshow(
            cells * 1e3,
            aspect="auto",
            interpolation="none",
            cmap="cividis",
            norm=PowerNorm(0.5, vmin=0.0, vmax=top * 1e3),
            extent=(0, float(edges[-1]), ranks - 0.5, -0.5),
        )
        names = [f"{history.nodes.get(rank, '')} rank {rank}".strip() for rank in history.ranks]
        every = max(1, ranks // 16)
        axes.set_yticks(range(0, ranks, every), names[::every])
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        for row in range(1, ranks):
            axes.axhline(row - 0.5, color=Ink.SURFACE, linewidth=1.5)
        _step_ticks(axes, history)
        _marks(axes, history)
        axes.set_xlabel("step, in the order in which they ran")
        bar_axes = figure.add_axes((0.93, 44 / height, 0.012, body * 0.96 / height))
        bar = figure.colorbar(picture, cax=bar_axes)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, labelsize=8)
        bar.ax.set_title("ms late", fontsize=8, color=Ink.MUTED, loc="left")
        return ink.inline_svg(figure, "heatmap", _description(history, top))


def _description(history: History, top: float) -> str:
    return (
        f"Mean lateness of {len(history.ranks)} ranks over {len(history.seconds)} steps, "
        f"from 0 to {top * 1e3:.1f} ms."
    )


def binned(late: NDArray[np.float64], most: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the mean of each bin of columns and the edges; a bin without a value is NaN."""
    columns = late.shape[1]
    edges = np.unique(np.linspace(0, columns, min(columns, most) + 1).astype(np.int64))
    present = np.isfinite(late)
    sums = np.add.reduceat(np.where(present, late, 0.0), edges[:-1], axis=1)
    counts = np.add.reduceat(present.astype(np.float64), edges[:-1], axis=1)
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return means, edges


def _step_ticks(axes: Axes, history: History) -> None:
    steps = history.step
    spacing = next(s for s in _SPACINGS if len(steps) / s <= 12)
    wanted = np.flatnonzero((steps % spacing == 0) & np.isin(np.arange(len(steps)), _first(steps)))
    axes.set_xticks(wanted + 0.5, [f"{steps[place]}" for place in wanted])


_SPACINGS = [base * 10**power for power in range(9) for base in (1, 2, 5)]


def _first(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each step stands for the first time."""
    return np.unique(steps, return_index=True)[1]


def _marks(axes: Axes, history: History) -> None:
    """Faults above the picture as brackets with their numbers, attempts as white lines."""
    for piece in history.attempt_slices()[1:]:
        axes.axvline(piece.start, color=Ink.SURFACE, linewidth=1.6)
    total = len(history.step)
    for number, fault in enumerate(history.faults, start=1):
        first = int(np.searchsorted(history.start, fault.start))
        last = total if fault.end is None else int(np.searchsorted(history.start, fault.end))
        last = max(last, first + max(total // 300, 1))
        axes.plot(
            [first, last], [1.04, 1.04], transform=axes.get_xaxis_transform(), color=Ink.RED,
            linewidth=2.2, clip_on=False, solid_capstyle="butt",
        )  # fmt: skip
        axes.annotate(
            f"{number}", (first, 1.04), xycoords=("data", "axes fraction"), xytext=(0, 3),
            textcoords="offset points", fontsize=8.5, fontweight="bold", color=Ink.RED,
            annotation_clip=False,
        )  # fmt: skip
