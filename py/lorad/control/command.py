"""`lorad adapters list | load | unload | pin | unpin | prewarm`, against a running server."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from lorad.control.remote import Remote
from lorad.counted import counted
from lorad.errors import LoradError

WAIT_SECONDS = 1.0
"""How long one look at an operation waits for its end."""
WIDTH = 120
"""Columns of what isn't printed on a terminal."""
HEADINGS = ("name", "state", "tier", "generation", "rank", "MB", "pages", "running", "waiting")
NUMBERS_FROM = 4
BORDER, SOURCE_MIN = 3, 24
"""Columns of a cell's border, and of the sources with theirs at least."""
DONE = {"load": "loaded", "reload": "reloaded", "unload": "unloaded", "prewarm": "hot"}


def control(arguments: argparse.Namespace) -> int:
    """Runs one of them; what is refused is raised."""
    remote = Remote(arguments.server, arguments.control_key)
    answer: Any
    match arguments.adapters_command:
        case "list":
            answer = remote.call("GET", "/v1/lora_adapters")
            if not arguments.json:
                print_adapters(answer["data"])
        case "load":
            body = {
                "source": arguments.source,
                "reload": arguments.reload,
                "digest": arguments.digest,
                "pinned": arguments.pinned,
            }
            answer = follow(remote, remote.call("PUT", remote.adapter(arguments.name), body), arguments.json)
        case "unload":
            query = "" if arguments.within is None else f"?within_seconds={arguments.within}"
            answer = follow(remote, remote.call("DELETE", remote.adapter(arguments.name) + query), arguments.json)
        case "prewarm":
            body = {"names": arguments.names, "within_seconds": arguments.within}
            answer = follow(remote, remote.call("POST", "/v1/lora_prewarm", body), arguments.json)
        case _:
            pinned = {"pinned": arguments.adapters_command == "pin"}
            answer = [remote.call("PATCH", remote.adapter(name), pinned) for name in arguments.names]
            if not arguments.json:
                print_adapters(answer)
    if arguments.json:
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    return 0


def follow(remote: Remote, operation: dict[str, Any], quiet: bool) -> dict[str, Any]:
    """Waits for an operation's end and shows how far it is; its failure is raised."""
    began = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task(operation["kind"], total=None)
        while operation["state"] == "running":
            path = f"/v1/operations/{operation['id']}?wait_seconds={WAIT_SECONDS}"
            operation = remote.call("GET", path, wait_seconds=WAIT_SECONDS)
            done = operation.get("progress") or {"done": 0, "total": None}
            progress.update(task, description=operation["stage"], completed=done["done"], total=done["total"])
    if operation["state"] == "failed":
        raise LoradError(operation["error"]["message"], code=operation["error"]["code"])
    if not quiet:
        names = ", ".join(operation["adapters"])
        what = "unchanged" if operation.get("changed") is False else DONE[operation["kind"]]
        warning = "".join(f"\n  {text}" for text in operation.get("warnings", []))
        generation = f", generation {operation['generation']}" if "generation" in operation else ""
        sys.stdout.write(f"{names}: {what} in {time.monotonic() - began:.2f} s{generation}{warning}\n")
    return operation


def print_adapters(cards: list[dict[str, Any]], console: Console | None = None) -> None:
    """A row for each; where that is too narrow to keep all but sources whole, a few lines for each."""
    if console is None:
        console = Console()
        console = console if console.is_terminal else Console(width=WIDTH)
    rows = [
        (
            *(card["name"], _state(card), card.get("tier") or "", card.get("generation", "")[:12]),
            *(str(card.get("rank", "")), _megabytes(card)),
            *(str(card.get(key, "")) for key in ("pages", "running", "waiting")),
        )
        for card in cards
    ]
    widths = (max(map(cell_len, column)) for column in zip(HEADINGS, *rows, strict=True))
    if sum(width + BORDER for width in widths) + SOURCE_MIN > console.width:
        _print_lines(cards, console)
        return
    table = Table(title=counted(len(cards), "adapter"))
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if number < NUMBERS_FROM else "right", no_wrap=True)
    table.add_column("source", overflow="fold")
    for row, card in zip(rows, cards, strict=True):
        table.add_row(*map(escape, (*row, card["source"])))
    console.print(table)


def _print_lines(cards: list[dict[str, Any]], console: Console) -> None:
    """What the table has, but for what an adapter lacks: its name, then what is known of it."""
    console.print(counted(len(cards), "adapter"))
    for card in cards:
        size = _megabytes(card)
        parts = [
            _state(card),
            card.get("tier") or "",
            f"rank {card['rank']}" if "rank" in card else "",
            f"{size} MB" if size else "",
            *(f"{card[key]} {key}" for key in ("pages", "running", "waiting") if key in card),
        ]
        console.print(Text(card["name"], style="bold", overflow="fold"))
        generation, source = card.get("generation", "")[:12], card["source"]
        for line in (", ".join(filter(None, parts)), generation, source):
            if line:
                console.print(Padding(Text(line, overflow="fold"), (0, 0, 0, 2)))


def _state(card: dict[str, Any]) -> str:
    state = card["state"] + (", pinned" if card["pinned"] else "")
    return f"{state}: {card['error']['code']}" if "error" in card else state


def _megabytes(card: dict[str, Any]) -> str:
    return f"{card['bytes'] / 1e6:,.1f}" if "bytes" in card else ""
