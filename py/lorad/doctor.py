"""`lorad doctor`: what this machine has, what lorad takes of it, and which operators were chosen here."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.table import Table

from lorad import __version__, _core
from lorad.models.files import data_folder
from lorad.models.operators import ROWS, Operators, cpu_model, fastest
from lorad.worker.threads import start_computing

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "gguf", "aiohttp", "msgspec")

WIDTH = 120
"""Columns that the tables need."""


def report(operators: Operators) -> dict[str, Any]:
    """Everything that the command prints, as plain data."""
    threads = start_computing()
    features = dict(_core.cpu_features())
    level = features.pop("level")
    return {
        "lorad": __version__,
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in PACKAGES},
        "cpu": cpu_model(),
        "threads": threads,
        "level": level,
        "features": features,
        "data_folder": str(data_folder()),
        "operators": {
            name: {"us": times, "chosen": list(fastest(times, one_copy=False).names)}
            for name, times in operators.known().items()
        },
    }


def doctor(*, as_json: bool) -> int:
    """Prints the report."""
    found = report(Operators())
    if as_json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return 0
    # In a file or a narrow terminal too, lines are as long as their numbers.
    console = Console(width=max(Console().width, WIDTH))
    facts = Table(title=f"lorad {found['lorad']}", show_header=False)
    packages = ", ".join(f"{name} {number or 'missing'}" for name, number in found["packages"].items())
    facts.add_row("Python", found["python"])
    facts.add_row("packages", packages)
    facts.add_row("CPU", f"{found['cpu']}, {found['threads']} threads")
    facts.add_row("instructions", f"{found['level']} in use; " + ", ".join(_marks(found["features"])))
    facts.add_row("data folder", found["data_folder"])
    console.print(facts)
    if not found["operators"]:
        console.print(
            "No operators were timed here yet. Where there are several, that's done when a base is first loaded."
        )
        return 0
    table = Table(title="products with the weights that were timed here: µs (once for each shape; * is taken)")
    for heading in ("weight", "operator", *(f"{rows} rows" for rows in ROWS)):
        table.add_column(heading, justify="left" if heading in ("weight", "operator") else "right")
    for weight, entry in found["operators"].items():
        for index, (name, times) in enumerate(entry["us"].items()):
            cells = [
                f"{us:,.0f}{' *' if chosen == name else '  '}"
                for us, chosen in zip(times, entry["chosen"], strict=True)
            ]
            last = index + 1 == len(entry["us"])
            table.add_row(weight if index == 0 else "", name, *cells, end_section=last)
    console.print(table)
    console.print(
        "Other weights are timed when a base that has them is first loaded; small ones take lorad's own operator."
    )
    return 0


def _marks(features: dict[str, bool]) -> list[str]:
    return [f"{name} {'yes' if present else 'no'}" for name, present in features.items()]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
