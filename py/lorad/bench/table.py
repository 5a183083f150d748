"""What the bench prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from lorad.bench.figures import KEYS, kept, spread
from lorad.bench.roofline import Reads
from lorad.bench.traffic import Traffic

if TYPE_CHECKING:
    from lorad.bench.command import Side

HEADINGS = {
    "output_tok_s": "tok/s",
    "ttft_p50_s": "TTFT p50, s",
    "ttft_p99_s": "p99",
    "tpot_p50_ms": "TPOT p50, ms",
    "itl_p50_ms": "ITL p50, ms",
    "itl_p99_ms": "p99",
    "step_ms": "step, ms",
}


def _cell(values: tuple[float, float, float], digits: int) -> str:
    middle, low, high = (f"{value:,.{digits}f}" for value in values)
    return f"{middle}\n[dim]{low}–{high}[/dim]"


def print_sides(console: Console, sides: Sequence[Side], traffic: Traffic, notes: str) -> None:
    """Base, one adapter, all adapters, and what each keeps of the base's throughput."""
    title = f"{traffic.requests} requests, " + (f"{traffic.rate:g} a second" if traffic.rate else "all at once")
    table = Table(title=f"{title}; median of the repeats (least–greatest)", caption=notes)
    table.add_column("adapters", no_wrap=True)
    table.add_column("of base", justify="right")
    for key in KEYS:
        table.add_column(HEADINGS[key], justify="right")
    for side in sides:
        label = f"{side.distinct} of rank {side.rank}" if side.distinct else "none: the base"
        row = [_cell(kept(side.repeats, sides[0].repeats), 2)]
        for key in KEYS:
            row.append(_cell(spread([one[key] for one in side.repeats]), 3 if key.startswith("ttft") else 1))
        table.add_row(label, *row)
    console.print(table)


def print_sweep(console: Console, sides: Sequence[Side], base: Side) -> None:
    """Share of the base's throughput by rank and distinct adapters."""
    counts = sorted({side.distinct for side in sides})
    table = Table(title="what is left of the base's throughput")
    table.add_column("rank", justify="right")
    for count in counts:
        table.add_column(f"{count} distinct", justify="right")
    for rank in sorted({side.rank for side in sides}):
        row = [side for side in sides if side.rank == rank]
        table.add_row(str(rank), *(_cell(kept(side.repeats, base.repeats), 2) for side in row))
    console.print(table)


def print_roofline(console: Console, reads: Reads, rate: float, side: Side) -> None:
    """What a decode step of all rows reads, what that takes at the memory's rate, and what it took."""
    least, took = reads.bytes / rate * 1e3, spread([one["itl_p50_ms"] for one in side.repeats])[0]
    parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in reads._asdict().items())
    console.print(
        f"A decode step of all rows reads {reads.bytes / 1e6:,.0f} MB ({parts}): {least:,.1f} ms at the "
        f"{rate / 1e9:.1f} GB/s measured here; it took {took:,.1f} ms (ITL p50), {took / least:.1f} times that."
    )
