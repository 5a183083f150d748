"""What loading and paging in cost: beside a memcpy, for others, at the places where engines fall off, and with 1,000
adapters in a pool for 64 (C8).

python benches/loads/run.py [--only pages,others,cliffs,zipf] [--repeats 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from cliffs import ROOM, measure_firsts_and_gaps, measure_slots
from others import HOT, measure_others, percentiles
from pages import measure_pages
from rich.console import Console
from rich.table import Table
from zipf import measure_zipf

from lorad.bench.adapters import copy_changed, write_random
from lorad.bench.figures import Figures
from lorad.demo.base import embedded_base
from lorad.models.open import open_model

ADAPTERS, IN_POOL = 1000, 64
SLOTS_RATE = 4.0
"""Requests a second, about half of what two cores can do."""
console = Console(width=None if sys.stdout.isatty() else 130)


def spread(values: list[float], digits: int) -> str:
    """Median and range."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def ratios(some: list[float], others: list[float]) -> list[float]:
    """Turn by turn."""
    return [a / b for a, b in zip(some, others, strict=True)]


def show_pages(found: dict[str, dict[str, list[float]]]) -> None:
    """ms by rank."""
    table = Table(
        "adapter", "memcpy, ms", "warm, ms", "warm ÷ memcpy (to reach: ≤ 2)", "cold, ms", title="C9: paging in"
    )
    for name, times in found.items():
        share = spread(ratios(times["warm"], times["memcpy"]), 2)
        table.add_row(name, spread(times["memcpy"], 2), spread(times["warm"], 2), share, spread(times["cold"], 1))
    console.print(table)


def show_others(found: dict[str, list[list[float]]]) -> None:
    """Their TTFT."""
    table = Table("", "p50, ms", "p99, ms", title="TTFT of others; median of the repeats (least–greatest)")
    by_kind = {kind: list(zip(*map(percentiles, runs), strict=True)) for kind, runs in found.items()}
    for kind, (p50, p99) in by_kind.items():
        table.add_row(kind, spread(list(p50), 1), spread(list(p99), 1))
    table.add_row(
        "beside loads ÷ alone (p99 to reach: ≤ 1.05)",
        *(spread(ratios(list(a), list(b)), 2) for a, b in zip(by_kind["beside loads"], by_kind["alone"], strict=True)),
    )
    console.print(table)


def show_cliffs(found: dict[str, dict[str, list[float]]], slots: dict[str, list[Figures]]) -> None:
    """Group 13 of docs/faults.md."""
    table = Table("13.3, 13.5", "", "", "÷", "to reach", title="Cliffs; median (least–greatest)")
    for name, times in found.items():
        (one, ones), (two, twos) = times.items() if name != "gaps" else sorted(times.items())
        goal = "≤ 2"
        words = (
            f"worst gap of eight streams, ms: {one}" if name == "gaps" else f"TTFT after a load of {name}, ms: {one}"
        )
        table.add_row(words, spread(ones, 1), f"{two}: {spread(twos, 1)}", spread(ratios(ones, twos), 2), goal)
    fits, twice = slots.values()
    for key, words, goal in (("ttft_p50_s", "TTFT p50, s", "≤ 3"), ("output_tok_s", "tok/s", "≥ 0.7")):
        some, others = [one[key] for one in twice], [one[key] for one in fits]
        digits = 3 if key.startswith("ttft") else 0
        table.add_row(
            f"13.4: {words}: {2 * ROOM} adapters, room for {ROOM}",
            spread(some, digits),
            f"{ROOM}: {spread(others, digits)}",
            spread(ratios(some, others), 2),
            goal,
        )
    console.print(table)


def show_zipf(found: dict[str, list[Figures]]) -> None:
    """C8's ratios."""

    def of(side: str, key: str) -> list[float]:
        return [one[key] for one in found[side]]

    table = Table(
        "", "", "to reach", title=f"C8: {ADAPTERS:,} registered, a pool for {IN_POOL}; median (least–greatest)"
    )
    rate = "output_tok_s"
    table.add_row("one adapter, tok/s", spread(of("one", rate), 0), "")
    table.add_row("Zipf over all, tok/s", spread(of("many", rate), 0), "")
    table.add_row("÷ one adapter", spread(ratios(of("many", rate), of("one", rate)), 3), "≥ 0.75")
    table.add_row("÷ a fixed split of the pool", spread(ratios(of("many", rate), of("split", rate)), 3), "≥ 1.3")
    for key, goal in (("ttft_p50_s", "≤ 1.3"), ("ttft_p99_s", "≤ 2")):
        table.add_row(f"{key} ÷ one adapter's", spread(ratios(of("many open", key), of("one open", key)), 2), goal)
    console.print(table)


def main() -> None:
    """Reads the options, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="pages,others,cliffs,zipf")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run beside loads")
    parser.add_argument("--adapters", type=int, default=ADAPTERS)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    model = Path(embedded_base())
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="loads-") as name:
        folder = Path(name)
        config = open_model(model).config
        first = write_random(folder / "first", config, 16, 0)
        if "pages" in options.only:
            found["pages"] = measure_pages(model, folder, options.repeats)
            show_pages(found["pages"])
        if "others" in options.only:
            hot = [copy_changed(first, folder / f"hot{number}", number + 1) for number in range(HOT)]
            cold = [copy_changed(first, folder / f"cold{number}", 100 + number) for number in range(20)]
            found["others"] = asyncio.run(measure_others(model, hot, cold, folder, options.seconds, options.repeats))
            show_others(found["others"])
        if "cliffs" in options.only:
            slots = [copy_changed(first, folder / f"slot{number}", 300 + number) for number in range(2 * ROOM)]
            found["cliffs"] = asyncio.run(measure_firsts_and_gaps(model, folder, options.repeats))
            found["slots"] = measure_slots(model, slots, SLOTS_RATE, options.repeats)
            show_cliffs(found["cliffs"], found["slots"])
        if "zipf" in options.only:
            paths = [copy_changed(first, folder / f"z{number}", 200 + number) for number in range(options.adapters)]
            say = lambda text: console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {text}", highlight=False)  # noqa: E731
            found["zipf"] = measure_zipf(model, paths, IN_POOL, options.repeats, say)
            show_zipf(found["zipf"])
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
