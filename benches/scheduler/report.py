"""The printed table: medians over the repeats with their spread, and vLLM's time over lorad's from paired repeats."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from run import Cell

P50_US_MAX = 30
P99_US_MAX = 100
RATIO_MIN = 200
GROWTH_MAX = 1.2
OTHER_WORK_MAX = 0.05
"""Above this share the machine wasn't quiet enough for a p99."""


def column(answers: list[dict], part: str, rank: str) -> list[float]:
    """One figure of every repeat, µs."""
    return [answer[part][rank] for answer in answers]


def spread(values: list[float], digits: int = 1) -> str:
    """Median, and the least and the greatest."""
    low, high = min(values), max(values)
    return f"{median(values):,.{digits}f} \n[dim]({low:,.{digits}f}–{high:,.{digits}f})[/dim]"


def ratios(cell: Cell) -> list[float]:
    """vLLM's `schedule()` over lorad's `step` + `commit`, medians of steps, repeat by repeat."""
    ours, theirs = column(cell.lorad, "both", "p50_us"), column(cell.vllm, "schedule", "p50_us")
    beside = len(ours) // max(len(theirs), 1)  # the first of a repeat's rounds
    return [b / a for a, b in zip(ours[::beside], theirs, strict=True)]


def faults(cell: Cell) -> list[str]:
    """What makes this cell's figures doubtful."""
    found = []
    if cell.state != "churn":
        for side, answers in (("lorad", cell.lorad), ("vLLM", cell.vllm)):
            states = [(answer["running_at_end"], answer["waiting_at_end"]) for answer in answers]
            if changed := [state for state in states if state != (256, cell.waiting)]:
                found.append(f"{side} ended with {changed[0][0]} running and {changed[0][1]} waiting")
        if moved := max(answer["admissions_and_preemptions"] for answer in cell.lorad):
            found.append(f"lorad admitted or preempted {moved} requests")
    if cell.other_work > OTHER_WORK_MAX:
        found.append(f"other work took up to {cell.other_work:.0%} of the machine")
    return found


def print_table(cells: list[Cell], notes: list[str], console: Console) -> None:
    """Everything that was measured, what C6 asks for, and what it was measured on."""
    table = Table(title="256 rows decode, 1,000 adapters, 64 hot: µs a step; median of the repeats (least–greatest)")
    for heading in ("state", "waiting", "lorad step+commit", "p99", "vLLM schedule()", "p99", "update", "vLLM ÷ lorad"):
        table.add_column(heading, justify="left" if heading == "state" else "right")
    for index, cell in enumerate(cells):
        row = [cell.state, f"{cell.waiting:,}"]
        row += [spread(column(cell.lorad, "both", rank)) for rank in ("p50_us", "p99_us")]
        if cell.vllm and not cell.no_vllm:
            row += [spread(column(cell.vllm, "schedule", rank), 0) for rank in ("p50_us", "p99_us")]
            row += [spread(column(cell.vllm, "update", "p50_us"), 0), spread(ratios(cell), 0)]
        else:
            row += [cell.no_vllm]
        last = index + 1 == len(cells) or cells[index + 1].state != cell.state
        table.add_row(*row, end_section=last)
    console.print(table)
    lines = [f"{cell.state}, {cell.waiting:,} waiting: {fault}" for cell in cells for fault in faults(cell)]
    for line in [*verdicts(cells), *lines, *notes]:
        console.print(line, markup=False, highlight=False)


def verdicts(cells: list[Cell]) -> list[str]:
    """C6 line by line, for the state that it means: adapter memory full, rows free."""
    found = {cell.waiting: cell for cell in cells if cell.state == "slots"}
    lines = []
    cell = found.get(10_000)
    if cell:
        p50, p99 = (median(column(cell.lorad, "both", rank)) for rank in ("p50_us", "p99_us"))
        lines.append(f"C6 p50 {p50:.1f} µs: {met(p50 <= P50_US_MAX)} ≤ {P50_US_MAX}")
        lines.append(f"C6 p99 {p99:.1f} µs: {met(p99 <= P99_US_MAX)} ≤ {P99_US_MAX}")
        if cell.vllm and not cell.no_vllm:
            ratio = median(ratios(cell))
            lines.append(f"C6 vLLM's schedule() ÷ step+commit {ratio:.0f}: {met(ratio >= RATIO_MIN)} ≥ {RATIO_MIN}")
        if more := found.get(100_000):
            pairs = zip(column(more.lorad, "both", "p50_us"), column(cell.lorad, "both", "p50_us"), strict=True)
            growth = median(a / b for a, b in pairs)
            lines.append(f"C6 100,000 ÷ 10,000 waiting {growth:.2f}: {met(growth <= GROWTH_MAX)} ≤ {GROWTH_MAX}")
    return lines


def met(reached: bool) -> str:
    """In a verdict."""
    return "reached," if reached else "MISSED,"


def as_json(cells: list[Cell], notes: list[str]) -> dict[str, object]:
    """The same as data, every repeat."""
    rows = []
    for cell in cells:
        row: dict[str, object] = {"state": cell.state, "waiting": cell.waiting, "lorad": cell.lorad}
        row |= {"other_work": round(cell.other_work, 3), "faults": faults(cell)}
        row |= {"no_vllm": cell.no_vllm} if cell.no_vllm else {"vllm": cell.vllm}
        rows.append(row)
    return {"notes": notes, "verdicts": verdicts(cells), "rows": rows}
