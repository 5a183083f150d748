"""What the bench prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from lorad.bench.figures import kept
from lorad.bench.roofline import Reads
from lorad.bench.side import SWEEP_DISTINCT, SWEEP_RANKS, Level, Side, base_of, of_level, twin_of
from lorad.bench.traffic import Traffic
from lorad.picture import Spread

HEADINGS = {
    "output_tok_s": "tok/s",
    "ttft_p50_s": "TTFT, s\np50",
    "ttft_p99_s": "\np99",
    "tpot_p50_ms": "TPOT, ms\np50",
    "tpot_p99_ms": "\np99",
    "itl_p50_ms": "ITL, ms\np50",
    "itl_p99_ms": "\np99",
}
LEVELS: dict[Level, str] = {"engine": "in process", "server": "over HTTP"}


def print_sides(console: Console, sides: Sequence[Side], traffic: Traffic, notes: Sequence[str]) -> None:
    """Every model, a row for each level; what is left of the base's throughput, and over HTTP of the engine's."""
    served = any(side.level == "server" for side in sides)
    table = Table(title=f"{traffic}; median of the repeats (least–greatest)", caption="\n".join(notes))
    table.add_column("adapters", no_wrap=True)
    if served:
        table.add_column("reached", no_wrap=True)
    table.add_column("of base", justify="right")
    if served:
        table.add_column("of engine", justify="right")
    for heading in HEADINGS.values():
        table.add_column(heading, justify="right")
    for side in sides:
        twin = twin_of(sides, side)
        row = [_cell(kept(side.repeats, base_of(sides, side).repeats))]
        if served:
            row = [LEVELS[side.level], *row, _cell(kept(side.repeats, twin.repeats)) if twin else ""]
        for key in HEADINGS:
            row.append(_cell(side.spread(key)))
        table.add_row("" if twin else side.title, *row)
    console.print(table)


def print_sweep(console: Console, sides: Sequence[Side]) -> None:
    """Share of the base's throughput by rank and distinct adapters, a table for each level."""
    for level, reached in LEVELS.items():
        swept = {(side.rank, side.distinct): side for side in of_level(sides, level) if side.name == "sweep"}
        if not swept:
            continue
        table = Table(title=f"what is left of the base's throughput, {reached}")
        table.add_column("rank", justify="right")
        for distinct in SWEEP_DISTINCT:
            table.add_column(f"{distinct} distinct", justify="right")
        for rank in SWEEP_RANKS:
            row = [swept[rank, distinct] for distinct in SWEEP_DISTINCT]
            table.add_row(str(rank), *(_cell(kept(side.repeats, base_of(sides, side).repeats)) for side in row))
        console.print(table)


def print_roofline(console: Console, reads: Reads, rate: float, side: Side) -> None:
    """What a decode step of all rows reads, what that takes at the memory's rate, and what it took."""
    least, took = reads.bytes / rate * 1e3, side.spread("itl_p50_ms").median
    parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in reads._asdict().items())
    console.print(
        f"A decode step of all rows reads {reads.bytes / 1e6:,.0f} MB ({parts}): {least:,.1f} ms at the "
        f"{rate / 1e9:.1f} GB/s measured here; it took {took:,.1f} ms (ITL p50), {took / least:.1f} times that."
    )


def _cell(spread: Spread) -> str:
    middle, low, high = map(_text, spread)
    return f"{middle}\n[dim]{low}–{high}[/dim]"


def _text(value: float) -> str:
    """With the three digits that matter, none beyond a thousandth."""
    places = 0
    while places < 3 and abs(value) < 10 ** (2 - places):
        places += 1
    return f"{value:,.{places}f}"
