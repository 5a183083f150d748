"""`lorad simulate fleet`: flags to summaries, table, picture and file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from lorad import __version__
from lorad.errors import InvalidRequest
from lorad.output import write_bytes
from lorad.picture import COLOURS, Spread, bar, line, write
from lorad.simulate.fleet import CORES_SEEDS, FIGURES, PRESETS, ROUTINGS, SEEDS, FleetSummary, Interval, compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

ALONE = ("compare", "trace", "watch", "random", "script")
"""Flags of one replica's scheduler."""
DRAWN = ("cold_loads", "ttft_p99_s")


def simulate(arguments: argparse.Namespace, console: Console, on_progress: Callable[[str, float, int], None]) -> int:
    """Runs the command; its exit code."""
    for name in ALONE:
        if getattr(arguments, name) not in ("", None):
            raise InvalidRequest(f"{name}: not of a fleet", code="option_form", param=name)
    if len(arguments.scenarios) > 1:
        raise InvalidRequest("scenario: a fleet runs alone", code="option_form", param="scenario")
    preset = arguments.preset or "chapter"
    if preset not in PRESETS:
        message = f"preset: one of {', '.join(PRESETS)}, got {preset!r}"
        raise InvalidRequest(message, code="option_form", param="preset")
    routings = [name for name in arguments.routing.split(",") if name] or list(ROUTINGS)
    cores = PRESETS[preset]
    seeds = (CORES_SEEDS if cores else SEEDS) if arguments.seeds is None else arguments.seeds
    made = compare(" ".join(arguments.set), routings, _sweep(arguments.sweep), seeds, on_progress, cores=cores)
    if arguments.json:
        file = {"form": 1, "lorad": __version__, "preset": preset, "set": arguments.set, "summaries": made}
        write_bytes(Path(arguments.json), msgspec.json.format(msgspec.json.encode(file)), "json")
    heads, rows = _cells(made)
    if arguments.markdown:
        lines = [heads, ["---"] * len(heads), *rows]
        console.file.write("".join(f"| {' | '.join(cells)} |\n" for cells in lines))
    else:
        console.print(_table(heads, rows, seeds))
    if arguments.plot:
        draw(made, Path(arguments.plot))
    return 0


def draw(made: Sequence[FleetSummary], path: Path) -> None:
    """Cold loads and TTFT p99: bars, or lines over what was swept; whiskers and bands hold 90% of the seeds."""
    key = next(iter(made[0].sweep), "")
    routings = list(dict.fromkeys(one.routing for one in made))

    def paint(picture: Picture) -> None:
        for axes, name in zip(picture.subplots(1, 2), DRAWN, strict=True):
            figure = FIGURES[name]
            for index, routing in enumerate(routings):
                series = [one for one in made if one.routing == routing]
                if key:
                    points = sorted(
                        (float(one.sweep[key].rpartition(":")[2]), _spread(one.figures[name])) for one in series
                    )
                    line(axes, index, routing, points)
                else:
                    spread = _spread(series[0].figures[name])
                    text = format(spread.median, figure.form)
                    bar(axes, index, spread, text, colour=COLOURS[index % len(COLOURS)], height=0.6)
            axes.set_title(figure.title, loc="left", fontsize=10)
            if key:
                axes.set_xlabel(key)
                axes.set_ylim(bottom=0)
            else:
                axes.set_yticks(range(len(routings)), routings)
                axes.invert_yaxis()
                axes.margins(x=0.14)
                axes.grid(axis="y", visible=False)
        if key:
            handles, names = axes.get_legend_handles_labels()
            picture.legend(handles, names, loc="outside upper center", ncols=min(len(names), 4))

    write(path, (9.6, 4.4 if key else 1.4 + 0.5 * len(routings)), paint)


def _spread(interval: Interval) -> Spread:
    return Spread(interval.median, interval.low, interval.high)


def _sweep(given: Sequence[str]) -> tuple[str, list[str]] | None:
    if not given:
        return None
    key, _, values = given[0].partition("=")
    found = [value for value in values.split(",") if value]
    if len(given) > 1 or not found or not all(value.rpartition(":")[2].isdecimal() for value in found):
        raise InvalidRequest(
            f"sweep: a fleet's wants one KEY=N1,N2, got {' '.join(given)!r}", code="option_form", param="sweep"
        )
    return key, found


def _cells(made: Sequence[FleetSummary]) -> tuple[list[str], list[list[str]]]:
    swept = list(made[0].sweep)
    shown = {key: figure for key, figure in FIGURES.items() if any(one.figures[key].high > 0 for one in made)}
    rows = []
    for one in made:
        cells = [one.routing, *(one.sweep[key] for key in swept)]
        for key, figure in shown.items():
            median, low, high = (format(value, figure.form) for value in msgspec.structs.astuple(one.figures[key]))
            cells.append(median if low == high else f"{median} ({low}–{high})")
        rows.append(cells)
    return ["routing", *swept, *(figure.title for figure in shown.values())], rows


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], seeds: int) -> Table:
    table = Table(box=None, pad_edge=False, caption=f"{seeds} seeds: median (5% to 95%)", caption_justify="left")
    for head in heads:
        table.add_column(head, justify="left" if head == "routing" else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
