"""Pictures of comparisons: figures over a sweep, TTFT by policy. Needs matplotlib: the extra `lorad[plot]`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lorad.picture import COLOURS, Spread, bar, line, write
from lorad.simulate.metric import BY_KEY
from lorad.simulate.summary import Figure, Summary

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Picture


def draw(summaries: Sequence[Summary], path: Path) -> None:
    """Lines when something was swept, else bars."""
    if any(one.sweep for one in summaries):
        lines(summaries, path)
    else:
        bars(summaries, path)


def lines(summaries: Sequence[Summary], path: Path) -> None:
    """Throughput and TTFT p99 over the first key that was swept, a line for each policy; bands: ranges over seeds."""
    key = next(iter(summaries[0].sweep))
    named = _named(summaries, without=key)
    label, places, ticks = _axis(key, summaries)

    def paint(picture: Picture) -> None:
        left, right = picture.subplots(1, 2)
        for axes, metric, title in (
            (left, "tokens_per_s", "throughput, tokens per second"),
            (right, "ttft_p99_s", "time to first token, p99, seconds"),
        ):
            for index, (name, series) in enumerate(named.items()):
                line(
                    axes, index, name, sorted((places[one.sweep[key]], _spread(one.figures[metric])) for one in series)
                )
            axes.set_title(title, loc="left", fontsize=10)
            axes.set_xlabel(label)
            if ticks:
                axes.set_xticks(range(len(ticks)), ticks)
        left.set_ylim(bottom=0)
        right.set_yscale("log")
        _plain_seconds(right.yaxis)
        handles, names = left.get_legend_handles_labels()
        picture.legend(handles, names, loc="outside upper center", ncols=min(len(names), 4))

    write(path, (9.6, 4.4), paint)


def bars(summaries: Sequence[Summary], path: Path) -> None:
    """TTFT p50 and p99 for each policy, on a logarithmic axis; whiskers are ranges over seeds."""
    named = [(name, one) for name, series in _named(summaries).items() for one in series]

    def paint(picture: Picture) -> None:
        axes = picture.subplots()
        for place, (_, one) in enumerate(named):
            for metric, offset, colour in (("ttft_p50_s", -0.19, COLOURS[5]), ("ttft_p99_s", 0.19, COLOURS[0])):
                figure, title = _spread(one.figures[metric]), metric.split("_")[1]
                text, label = BY_KEY[metric].text(figure.median), title if place == 0 else None
                bar(axes, place + offset, figure, text, colour=colour, label=label)
        axes.set_yticks(range(len(named)), [name for name, _ in named])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        shortest = min(one.figures["ttft_p50_s"].least for _, one in named)
        axes.set_xscale("log")
        axes.margins(x=0.12)
        axes.set_xlim(left=10 ** math.floor(math.log10(max(shortest, 1e-6))))
        _plain_seconds(axes.xaxis)
        axes.set_xlabel("time to first token, seconds")
        picture.legend(loc="outside upper right", ncols=2)

    write(path, (7.6, 1.4 + 0.55 * len(named)), paint)


def _spread(figure: Figure) -> Spread:
    return Spread(figure.median, figure.least, figure.most)


def _named(summaries: Sequence[Summary], without: str = "") -> dict[str, list[Summary]]:
    """Series by what tells them apart: scenario, policy, further sweeps."""
    several = len({one.scenario for one in summaries}) > 1
    found: dict[str, list[Summary]] = {}
    for one in summaries:
        swept = [f"{key}={value}" for key, value in one.sweep.items() if key != without]
        parts = [one.scenario if several else "", one.policy, *swept]
        found.setdefault(" ".join(filter(None, parts)) or one.scenario, []).append(one)
    return found


def _axis(key: str, summaries: Sequence[Summary]) -> tuple[str, dict[str, float], list[str]]:
    """Label, place of each value, and the ticks' texts where places are no numbers."""
    given = list(dict.fromkeys(one.sweep[key] for one in summaries))
    rates = {one.sweep[key]: one.offered_per_s for one in summaries}
    if key == "arrivals" and None not in rates.values():
        return "offered load, requests per second", {value: rate or 0.0 for value, rate in rates.items()}, []
    if all(value.isdecimal() for value in given):
        return key, {value: float(value) for value in given}, []
    return key, {value: float(place) for place, value in enumerate(given)}, given


def _plain_seconds(axis: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
