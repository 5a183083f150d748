"""`lorad adapters combine`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from lorad.adapters.combine.combine import Part, Recipe, combine
from lorad.adapters.combine.interference import Interference, interference
from lorad.adapters.combine.texts import Expected, expect, read_texts
from lorad.adapters.load import load_adapter
from lorad.adapters.pieces import Pieces
from lorad.adapters.staged import staged
from lorad.adapters.write import write_peft
from lorad.errors import InvalidRequest
from lorad.models.open import open_model

WIDTH = 110
COMPARED_MAX = 12
"""Adapters of which each two are compared, which takes as long as there are pairs."""


def run_combine(arguments: argparse.Namespace) -> int:
    """Writes the combined adapter and says what stands in whose way."""
    recipe = Recipe(arguments.method, arguments.density, arguments.rank, arguments.majority, arguments.seed)
    sets = [read_texts(path) for path in arguments.texts]
    weights = open_model(arguments.model)
    parts, paths = [], []
    for text in arguments.adapters:
        path, weight = parse_part(text)
        adapter = load_adapter(path.name, path, weights.config, weights.digest, max_lora_rank=arguments.max_lora_rank)
        parts.append(Part(adapter, weight))
        paths.append(path)
    made = combine(parts, recipe)
    names = ", ".join(f"{part.weight:g} × {part.adapter.name}" for part in parts)
    count = len({(lora.layer, lora.module) for part in parts for lora in part.adapter.modules})
    shown = track(made, recipe.method, total=count, console=Console(stderr=True), transient=True)
    found: list[Expected] = []
    with staged(arguments.output) as folder:
        pieces = Pieces(tuple(shown))
        write_peft(folder, pieces, weights.config, arguments.dtype, f"lorad, {recipe.method}: {names}")
        if sets:
            # The ranks of parts add up, beyond the limit that holds for each.
            rank = max(arguments.max_lora_rank, *(len(piece.parts["A"]) for piece in pieces.modules))
            adapters = {f"part-{number}": path for number, path in enumerate(paths, 1)} | {"together": folder}
            found = expect(arguments.model, adapters, sets, max_lora_rank=rank)
    if len(parts) <= COMPARED_MAX:
        print_interference(interference([part.adapter for part in parts]))
    if found:
        print_expected(found, [part.adapter.name for part in parts])
    measured = "" if found else " Measure it on held-out texts (--texts)."
    sys.stdout.write(
        f"{arguments.output}: {recipe.method} of {names}\n"
        f"An experiment: adapters that were trained apart weren't made to be added.{measured}\n"
    )
    return 0


def parse_part(text: str) -> tuple[Path, float]:
    """PATH or PATH:WEIGHT; a weight of 1 if none is given."""
    path, colon, weight = text.rpartition(":")
    if not colon or Path(text).exists():
        return Path(text), 1.0
    try:
        return Path(path), float(weight)
    except ValueError:
        raise InvalidRequest(
            f"adapters: wants PATH:WEIGHT, got {text!r}", code="option_form", param="adapters"
        ) from None


def print_interference(found: list[Interference]) -> None:
    """A row for each two adapters."""
    if not found:
        return
    table = Table("adapters", title="in each other's way? means over the modules that both adapt")
    for heading in ("modules", "overlap of what they read", "of what they write", "cosine of B·A"):
        table.add_column(heading, justify="right")
    for one in found:
        figures = (f"{value:.3f}" for value in (one.reads, one.writes, one.cosine))
        table.add_row(escape(f"{one.first}, {one.second}"), str(one.modules), *figures)
    _print(table)


def print_expected(found: list[Expected], parts: list[str]) -> None:
    """A row for each set of texts; a column for the base, for each part and for the result."""
    table = Table(title="perplexity of held-out texts; lower is better")
    table.add_column("texts", overflow="fold")
    for heading in ("tokens", "base", *map(escape, parts), "together"):
        table.add_column(heading, justify="right", overflow="fold")
    for one in found:
        figures = (f"{value:.3f}" for value in one.perplexities.values())
        table.add_row(escape(str(one.path)), f"{one.tokens:,}", *figures)
    _print(table)


def _print(table: Table) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)
