"""`lorad adapters list | load | unload | pin | unpin | prewarm`, against a running server."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from lorad.control.remote import Remote
from lorad.errors import LoradError

WAIT_SECONDS = 1.0
"""How long one look at an operation waits for its end."""
WIDTH = 120
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


def print_adapters(cards: list[dict[str, Any]]) -> None:
    """A row for each."""
    table = Table("name", "state", "tier", "generation", title=f"{len(cards)} adapters")
    for heading in ("rank", "MB", "pages", "running", "waiting"):
        table.add_column(heading, justify="right")
    table.add_column("source", overflow="fold")
    for card in cards:
        state = card["state"] + (", pinned" if card["pinned"] else "")
        if "error" in card:
            state += f": {card['error']['code']}"
        size = f"{card['bytes'] / 1e6:,.1f}" if "bytes" in card else ""
        counts = [str(card.get(key, "")) for key in ("pages", "running", "waiting")]
        words = [card["name"], state, card.get("tier") or "", card.get("generation", "")[:12]]
        table.add_row(*map(escape, words), str(card.get("rank", "")), size, *counts, escape(card["source"]))
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)
