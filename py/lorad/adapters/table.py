"""What `lorad adapters` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lorad.adapters.reject import readable
from lorad.adapters.report import Report


def print_reports(console: Console, reports: Sequence[Report]) -> None:
    """A row for each adapter; below it what is to be said about them."""
    table = Table()
    for heading in ("adapter", "format", "numbers"):
        table.add_column(heading, overflow="fold")
    for heading in ("modules", "rank", "MB", "pages"):
        table.add_column(heading, justify="right")
    table.add_column("|s·B·A|", justify="right")
    table.add_column("")
    for report in reports:
        if report.refusal is not None:
            cells = [*[""] * 5, f"[red]refused: {report.refusal.code}[/red]"]
        else:
            said = "warnings below" if report.warnings else "can be served"
            low, high = min(e.norm_min for e in report.effects), max(e.norm_max for e in report.effects)
            cells = [str(report.modules), str(report.rank), f"{report.bytes / 1e6:,.1f}", str(report.pages or "")]
            cells += [f"{_number(low)}–{_number(high)}", f"[green]{said}[/green]"]
        table.add_row(escape(readable(report.name)), report.format, ", ".join(report.types), *cells)
    console.print(table)
    for report in reports:
        _print_words(console, report)


def print_effects(console: Console, report: Report) -> None:
    """One adapter, a row for each module."""
    facts = Table(title=escape(readable(report.name)), show_header=False)
    facts.add_row("path", escape(readable(report.path)))
    if report.format:
        facts.add_row("format", f"{report.format}, numbers of {', '.join(report.types)}")
    if report.refusal is None:
        facts.add_row("kept as", f"{report.element}, {report.bytes:,} bytes")
        facts.add_row("modules", f"{report.modules}, rank {report.rank} at most")
    if report.generation:
        facts.add_row("generation", report.generation)
        facts.add_row("pages", f"{report.pages} of {report.page_bytes:,} bytes")
    console.print(facts)
    if report.effects:
        table = Table(title="what is added: |scale · B · A| over the layers")
        table.add_column("module")
        for heading in ("layers", "rank", "scale", "least", "mean", "greatest"):
            table.add_column(heading, justify="right")
        for effect in report.effects:
            table.add_row(
                effect.module,
                str(effect.layers),
                ", ".join(map(str, effect.ranks)),
                ", ".join(map(_number, effect.scales)),
                *map(_number, (effect.norm_min, effect.norm_mean, effect.norm_max)),
            )
        console.print(table)
    _print_words(console, report)


def _print_words(console: Console, report: Report) -> None:
    if report.refusal is not None:
        console.print(
            f"{escape(readable(report.name))}: [red]refused[/red]: {escape(report.refusal.message)} "
            f"{escape('[' + report.refusal.code + ']')}"
        )
    for warning in report.warnings:
        console.print(f"{escape(readable(report.name))}: [yellow]warning[/yellow]: {escape(warning)}")


def _number(value: float) -> str:
    return f"{value:.4g}"
