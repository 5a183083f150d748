"""The bench's picture: tokens per second of every model, and over distinct adapters for each rank of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lorad.bench.side import SWEEP_DISTINCT, SWEEP_RANKS, Side, base_of, of_level
from lorad.bench.table import LEVELS
from lorad.bench.traffic import Traffic
from lorad.picture import COLOURS, bar, line, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATE, LABEL = "output_tok_s", "tokens per second"


def draw(sides: Sequence[Side], traffic: Traffic, path: Path) -> None:
    """Bars for the models, a panel of lines for each level of a sweep; whiskers and bands are ranges over repeats."""
    models = [side for side in sides if side.name != "sweep"]
    swept = [level for level in LEVELS if any(side.name == "sweep" for side in of_level(sides, level))]

    def paint(picture: Figure) -> None:
        panels = list(picture.subplots(1, 1 + len(swept), squeeze=False)[0])
        _bars(panels[0], models)
        for axes, level in zip(panels[1:], swept, strict=True):
            _lines(axes, of_level(sides, level))
            axes.set_title(f"by rank, {LEVELS[level]}", loc="left", fontsize=10)
            axes.set_ylim(bottom=0)
        picture.suptitle(str(traffic), fontsize=10)

    write(path, (7.6 + 4.4 * len(swept), max(1.6 + 0.4 * len(models), 3.6 if swept else 0)), paint)


def _bars(axes: Axes, models: Sequence[Side]) -> None:
    levels = list(dict.fromkeys(side.level for side in models))
    titles = list(dict.fromkeys(side.title for side in models))
    height = 0.8 / len(levels)
    for side in models:
        index, spread = levels.index(side.level), side.spread(RATE)
        place = titles.index(side.title) + (index - (len(levels) - 1) / 2) * height
        label = LEVELS[side.level] if side.name == "base" else None
        bar(axes, place, spread, f"{spread.median:,.1f}", colour=COLOURS[index], label=label, height=height * 0.92)
    axes.set_yticks(range(len(titles)), titles)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.15)
    axes.set_title("adapters", loc="left", fontsize=10)
    axes.set_xlabel(LABEL)
    if len(levels) > 1:
        axes.legend(loc="lower center", bbox_to_anchor=(0.6, 1.0), ncols=2)


def _lines(axes: Axes, sides: Sequence[Side]) -> None:
    for index, rank in enumerate(SWEEP_RANKS):
        points = [(float(one.distinct), one.spread(RATE)) for one in sides if (one.name, one.rank) == ("sweep", rank)]
        line(axes, index, f"rank {rank}", sorted(points))
    base = base_of(sides, sides[0]).spread(RATE)
    axes.axhline(base.median, color=COLOURS[-1], linewidth=1, linestyle=":", label="the base")
    axes.set_xscale("log", base=2)
    axes.set_xticks(SWEEP_DISTINCT, [str(distinct) for distinct in SWEEP_DISTINCT])
    axes.minorticks_off()
    axes.set_xlabel("distinct adapters")
    axes.set_ylabel(LABEL)
    axes.legend()
