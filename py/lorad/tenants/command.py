"""`lorad tenants`, `lorad keys`, `lorad usage`: they work on the state file, whether or not a server uses it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lorad.counted import counted
from lorad.errors import InvalidRequest, LoradError
from lorad.store.state import state_path
from lorad.tenants.file import KeyRow, TenantFile, Used
from lorad.tenants.sums import HOURS_MAX, as_csv, as_dicts, fields_of, first_hour, summed
from lorad.tenants.tenant import Limits, Tenant

WIDTH = 120


def tenants(arguments: argparse.Namespace) -> int:
    """`lorad tenants list | set | remove`."""
    with _file(arguments, make=arguments.tenants_command == "set") as file:
        match arguments.tenants_command:
            case "set":
                shown = [file.put(_changed(file, arguments))]
            case "remove":
                file.remove(arguments.name)
                shown = file.tenants()
            case _:
                shown = file.tenants()
    if arguments.json:
        _print_json([_tenant_dict(tenant) for tenant in shown])
    else:
        _print_tenants(shown)
    return 0


def keys(arguments: argparse.Namespace) -> int:
    """`lorad keys list | add | remove`."""
    with _file(arguments, make=arguments.keys_command == "add" and arguments.operator) as file:
        if arguments.keys_command == "add":
            key, row = file.add_key(arguments.tenant, arguments.label)
            if arguments.json:
                _print_json([_key_dict(row) | {"key": key}])
            else:
                whose = "an operator's" if row.tenant is None else f"of tenant {row.tenant}"
                sys.stdout.write(f"key {row.id}, {whose}; it isn't shown again:\n{key}\n")
            return 0
        shown = [file.remove_key(id) for id in arguments.ids] if arguments.keys_command == "remove" else file.keys()
    if arguments.json:
        _print_json([_key_dict(row) for row in shown])
    else:
        removed = arguments.keys_command == "remove"
        table = Table("id", "of", "label", "made", title=counted(len(shown), "key") + (" removed" if removed else ""))
        for row in shown:
            whose = "[bold]an operator[/bold]" if row.tenant is None else escape(row.tenant)
            table.add_row(row.id, whose, escape(row.label), _date(row.created))
        _print(table)
    return 0


def usage(arguments: argparse.Namespace) -> int:
    """`lorad usage`."""
    by = fields_of(arguments.by, "option_form")
    if arguments.hours is not None and not 1 <= arguments.hours <= HOURS_MAX:
        raise InvalidRequest(f"hours: 1 to {HOURS_MAX}, got {arguments.hours}", code="option_range", param="hours")
    with _file(arguments) as file:
        rows = file.usage(first_hour(time.time(), arguments.hours))
    if arguments.csv:
        sys.stdout.write(as_csv(rows, by))
    elif arguments.json:
        _print_json(as_dicts(rows, by))
    else:
        table = Table(*by, title="usage")
        for heading in ("requests", "prompt", "cached", "made", "seconds", "loads", "MB loaded", "load s"):
            table.add_column(heading, justify="right")
        total = Used()
        for key, used in summed(rows, by).items():
            names = [_hour(cell) if field == "hour" else escape(cell) for field, cell in zip(by, key, strict=True)]
            table.add_row(*names, *_figures(used))
            total = total.plus(used)
        table.add_section()
        table.add_row("all", *[""] * (len(by) - 1), *_figures(total), style="bold")
        _print(table)
    return 0


@contextmanager
def _file(arguments: argparse.Namespace, *, make: bool = False) -> Iterator[TenantFile]:
    """`make`: for commands that make sense without anything there; a file they'd look into would be a wrong path."""
    file = TenantFile(state_path(arguments.state_file), make=make)
    try:
        yield file
    finally:
        file.close()


def _changed(file: TenantFile, arguments: argparse.Namespace) -> Tenant:
    """The tenant as it is, or a new one, with what the flags say of it."""
    try:
        tenant = file.tenant(arguments.name)
    except LoradError:
        tenant = Tenant(arguments.name, 0, adapters=())
    given = {field: getattr(arguments, field) for field in Limits._fields}
    limits = tenant.limits._replace(**{field: value for field, value in given.items() if value is not None})
    changes = {"adapters": arguments.adapters, "base": arguments.base, "weight": arguments.weight}
    changes = {field: value for field, value in changes.items() if value is not None}
    if "adapters" in changes:
        changes["adapters"] = tuple(changes["adapters"])
    return tenant._replace(limits=limits, **changes)


def _print_tenants(tenants: list[Tenant]) -> None:
    table = Table("tenant", "adapters", "base", title=counted(len(tenants), "tenant"))
    for heading in ("weight", "requests/min", "tokens/min", "running", "waiting", "pages", "adapters"):
        table.add_column(heading, justify="right")
    for tenant in tenants:
        limits = [f"{limit:,}" if limit else "–" for limit in tenant.limits]
        names = escape(", ".join(tenant.adapters)) or "–"
        table.add_row(escape(tenant.name), names, "yes" if tenant.base else "no", str(tenant.weight), *limits)
    _print(table)


def _figures(used: Used) -> list[str]:
    counts = (used.requests, used.prompt_tokens, used.cached_tokens, used.generation_tokens)
    loads = (f"{used.loads:,}", f"{used.load_bytes / 1e6:,.1f}", f"{used.load_seconds:,.2f}")
    return [*(f"{count:,}" for count in counts), f"{used.seconds:,.1f}", *loads]


def _tenant_dict(tenant: Tenant) -> dict[str, Any]:
    limits = tenant.limits._asdict()
    return {"name": tenant.name, "adapters": tenant.adapters, "base": tenant.base, "weight": tenant.weight} | limits


def _key_dict(row: KeyRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "tenant": row.tenant,
        "operator": row.tenant is None,
        "label": row.label,
        "created": row.created,
    }


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _hour(hour: str) -> str:
    return datetime.fromtimestamp(int(hour) * 3600, UTC).strftime("%Y-%m-%d %H h")


def _print(table: Table) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)


def _print_json(data: list[dict[str, Any]]) -> None:
    sys.stdout.write(json.dumps(data, indent=1) + "\n")
