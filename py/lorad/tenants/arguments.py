"""The flags of `lorad tenants`, `lorad keys` and `lorad usage`."""

from __future__ import annotations

import argparse
from typing import Any

from lorad.later import later
from lorad.tenants.sums import BY, GROUPS

LIMITS = {
    "requests_per_minute": "requests that may arrive in a minute",
    "tokens_per_minute": "tokens that may be read and made in a minute",
    "running_max": "sequences that run at the same time; more wait",
    "waiting_max": "sequences that wait; one more is refused",
    "pages_max": "pages of the pool that its running sequences hold",
    "adapters_max": "adapters that its requests in flight name; one more is refused",
}
"""Each field of `Limits`."""


def add_tenants(commands: Any) -> None:
    """`lorad tenants`."""
    tenants = commands.add_parser("tenants", help="who may ask for what, and how much of it", allow_abbrev=False)
    of = tenants.add_subparsers(required=True, metavar="COMMAND", dest="tenants_command")
    listing = of.add_parser("list", help="all tenants and their limits", allow_abbrev=False)
    put = of.add_parser("set", help="make a tenant, or change what is given of one", allow_abbrev=False)
    put.add_argument("name", help="the tenant")
    put.add_argument(
        "--adapters",
        nargs="*",
        metavar="NAME",
        help="all that it may use; a name that ends with * stands for all that begin so (none)",
    )
    put.add_argument(
        "--base", action=argparse.BooleanOptionalAction, default=None, help="whether it may ask the base model (yes)"
    )
    put.add_argument("--weight", type=int, help="its share beside the others', 1 to 1000 (100)")
    for field, meaning in LIMITS.items():
        put.add_argument(f"--{field.replace('_', '-')}", type=int, metavar="N", help=f"{meaning}; 0: no limit (0)")
    remove = of.add_parser("remove", help="take a tenant and its keys away; its usage stays", allow_abbrev=False)
    remove.add_argument("name", help="the tenant")
    _finish(listing, put, remove, function="tenants")


def add_keys(commands: Any) -> None:
    """`lorad keys`."""
    keys = commands.add_parser("keys", help="what tenants and operators are known by", allow_abbrev=False)
    of = keys.add_subparsers(required=True, metavar="COMMAND", dest="keys_command")
    listing = of.add_parser("list", help="all keys, by id; none of them is shown", allow_abbrev=False)
    add = of.add_parser("add", help="make a key and show it, this once", allow_abbrev=False)
    whose = add.add_mutually_exclusive_group(required=True)
    whose.add_argument("tenant", nargs="?", help="whose it is")
    whose.add_argument("--operator", action="store_true", help="it opens the control endpoints and asks for no tokens")
    add.add_argument("--label", default="", help="what it's for")
    remove = of.add_parser("remove", help="take keys away; running servers follow at once", allow_abbrev=False)
    remove.add_argument("ids", nargs="+", metavar="ID", help="as listed, or a beginning of it")
    _finish(listing, add, remove, function="keys")


def add_usage(commands: Any) -> None:
    """`lorad usage`."""
    usage = commands.add_parser("usage", help="what each tenant used of each model", allow_abbrev=False)
    usage.add_argument("--by", default=BY, help=f"sums by these: {', '.join(GROUPS)} ({BY})")
    usage.add_argument("--hours", type=int, help="only the last so many, the running one included; default: all")
    form = usage.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="for a spreadsheet or an invoice")
    _finish(usage, function="usage", json_group=form)


def _finish(*parsers: argparse.ArgumentParser, function: str, json_group: Any = None) -> None:
    for parser in parsers:
        (json_group or parser).add_argument("--json", action="store_true", help="as data")
        parser.add_argument("--state-file", default="", help="of the server; default: state.sqlite in the data folder")
        parser.set_defaults(run=later("lorad.tenants.command", function))
