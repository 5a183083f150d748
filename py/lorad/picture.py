"""What pictures of measurements share: colours, lines with bands, bars with whiskers. Needs matplotlib: lorad[plot]."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lorad.errors import InvalidRequest
from lorad.output import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMS = (".svg", ".png", ".pdf")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d")
"""Okabe and Ito's, which most colour-blind people tell apart; markers and dashes tell the same."""
MARKERS = "osD^vPX"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "lorad",  # the same figures give the same file
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
}


class Spread(NamedTuple):
    """A figure over repeats."""

    median: float
    least: float
    most: float


def check(path: Path) -> None:
    """Refuses what `write` couldn't write, before anything runs."""
    if find_spec("matplotlib") is None:
        message = "plot: matplotlib isn't installed; pip install 'lorad[plot]' brings it"
        raise InvalidRequest(message, code="plot_missing", param="plot")
    if path.suffix not in FORMS:
        message = f"plot: {path}: the name has to end with {', '.join(FORMS)}"
        raise InvalidRequest(message, code="plot_form", param="plot")


def line(axes: Axes, index: int, name: str, points: Sequence[tuple[float, Spread]]) -> None:
    """The medians over their places, and a band where they spread; `index` chooses how it looks."""
    across = [place for place, _ in points]
    colour = COLOURS[index % len(COLOURS)]
    axes.plot(
        across,
        [spread.median for _, spread in points],
        color=colour,
        marker=MARKERS[index % len(MARKERS)],
        markersize=4.5,
        linewidth=1.8,
        linestyle="-" if index < len(COLOURS) else "--",
        label=name,
    )
    least, most = [spread.least for _, spread in points], [spread.most for _, spread in points]
    if least != most:
        axes.fill_between(across, least, most, color=colour, alpha=0.15, linewidth=0)


def bar(
    axes: Axes, place: float, spread: Spread, text: str, *, colour: str, label: str | None = None, height: float = 0.36
) -> None:
    """A bar along x with its text behind it, and a whisker where it spreads; `label`: its name in the legend."""
    whiskers = [[spread.median - spread.least], [spread.most - spread.median]]
    axes.barh(
        place,
        spread.median,
        height=height,
        color=colour,
        label=label,
        xerr=whiskers if spread.least < spread.most else None,
        error_kw={"ecolor": "#333333", "elinewidth": 1, "capsize": 2},
    )
    axes.text(spread.most, place, f" {text}", va="center", fontsize=9)


def write(path: Path, inches: tuple[float, float], paint: Callable[[Figure], None]) -> None:
    """Lets `paint` fill a picture and writes it in the form that the name says."""
    check(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        picture = Figure(figsize=inches, layout="constrained", facecolor="white")
        paint(picture)
        content = io.BytesIO()
        form = path.suffix.removeprefix(".")
        picture.savefig(content, format=form, metadata={"Date": None} if form == "svg" else None, dpi=150)
    write_bytes(path, content.getvalue(), "plot")
