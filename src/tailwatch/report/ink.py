"""Charts as SVG that lives inside a page: its colours are the page's own variables.

Contract: `Ink` colours are stand-ins that `inline_svg` replaces with CSS variables, so one chart
serves light, dark and print. The SVG holds text as text, no date, no id that another chart of the
page could have, no namespace and no address of anything outside. The same input gives the same
bytes. matplotlib is imported only here and in the charts, when a page is drawn.

Cost: coordinates are rounded to a tenth of a pixel; 5,000 dots take about 70 KB.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stand-in colour -> CSS variable. The stand-ins are colours no chart uses by accident.
_VARIABLES = {
    "#010101": "currentColor",
    "#010102": "var(--muted)",
    "#010103": "var(--line)",
    "#010104": "var(--blue)",
    "#010105": "var(--orange)",
    "#010106": "var(--red)",
    "#010107": "var(--green)",
    "#010108": "var(--purple)",
    "#010109": "var(--surface)",
}


class Ink:
    """Colours by what they mean; the page gives each a value for light and for dark."""

    TEXT = "#010101"
    MUTED = "#010102"
    LINE = "#010103"
    BLUE = "#010104"
    ORANGE = "#010105"
    RED = "#010106"
    GREEN = "#010107"
    PURPLE = "#010108"
    SURFACE = "#010109"


_STYLE: Any = {
    "svg.fonttype": "none",
    "path.simplify": False,
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.edgecolor": Ink.LINE,
    "axes.labelcolor": Ink.MUTED,
    "axes.titlecolor": Ink.TEXT,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "text.color": Ink.TEXT,
    "xtick.color": Ink.LINE,
    "ytick.color": Ink.LINE,
    "xtick.labelcolor": Ink.MUTED,
    "ytick.labelcolor": Ink.MUTED,
    "grid.color": Ink.LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of `width` x `height` CSS pixels that draws without a display."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    made = Figure(figsize=(width / 96, height / 96), dpi=96)
    FigureCanvasSVG(made)
    return made


def style() -> Any:
    """Return the context in which charts are drawn and saved."""
    import matplotlib as mpl

    return mpl.rc_context(_STYLE)


def grid(axes: Axes, axis: str = "y") -> None:
    """Draw faint lines at the major ticks and take the ticks themselves away."""
    axes.grid(True, axis=axis, which="major")  # type: ignore[arg-type]
    axes.tick_params(which="both", length=0)


def inline_svg(drawn: Figure, name: str, description: str) -> str:
    """Return the figure as an `<svg>` element; `name` is unique in the page, plain letters."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        drawn.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    for stand_in, variable in _VARIABLES.items():
        text = text.replace(stand_in, variable)
    text = re.sub(r'\bd="([^"]*)"', lambda m: f'd="{_short_path(m.group(1))}"', text)
    text = _own_ids(text, name)
    text = re.sub(r"font: (\d+(?:\.\d+)?)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r"\n\s*", "\n", text)
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    body = text[text.index(">") + 1 :].strip()
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return f'<svg class="chart" viewBox="{box.group(1)}" role="img" aria-label="{label}">\n{body}'


def _short_path(data: str) -> str:
    """Return path data with a tenth of a pixel as the unit; a step in place becomes `h0`."""
    rounded = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m.group()):.1f}", data).replace("\n", "")
    return re.sub(r"M (\S+) (\S+) L \1 \2 ?", r"M\1 \2h0", rounded).strip()


def _own_ids(text: str, name: str) -> str:
    """Keep only ids that something refers to, and make them the chart's own."""
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))

    def keep(match: re.Match[str]) -> str:
        return f' id="{name}-{match.group(1)}"' if match.group(1) in used else ""

    text = re.sub(r'\s+id="([^"]+)"', keep, text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    return re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
