"""`lorad adapters stale`: which adapters a new base leaves behind."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lorad.models.open import open_model
from lorad.store.state import by_base, state_path

WIDTH = 110


def stale(arguments: argparse.Namespace) -> int:
    """Lists the adapters that were registered for other bases than this one; 1 if there are some."""
    path = state_path(arguments.state_file)
    digest = open_model(arguments.model).digest
    found = [
        {"name": row.name, "base": base, "generation": row.generation, "source": row.source or row.wanted_source}
        for base, row in by_base(path)
        if base != digest
    ]
    if arguments.json:
        sys.stdout.write(json.dumps({"base": digest, "stale": found}, indent=1) + "\n")
    elif not found:
        sys.stdout.write(f"all adapters of {path} are this base's, {digest[:12]}\n")
    else:
        table = Table("name", "trained for base", "generation", title=f"to be trained again for {digest[:12]}")
        table.add_column("source", overflow="fold")
        for one in found:
            table.add_row(escape(one["name"]), one["base"][:12], one["generation"][:12], escape(one["source"]))
        console = Console()
        (console if console.is_terminal else Console(width=WIDTH)).print(table)
    return int(bool(found))
