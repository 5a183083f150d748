"""The flags of those `lorad adapters` commands that ask a running server. Imports nothing that takes time."""

from __future__ import annotations

import argparse
import os
from typing import Any

from lorad.later import later

ADDRESS = "http://127.0.0.1:8000"


def add_commands(commands: Any) -> None:
    """Adds them to the commands of `lorad adapters`."""

    def command(name: str, help: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(name, help=help, allow_abbrev=False)
        parser.add_argument(
            "--server",
            default=os.environ.get("LORAD_SERVER", ADDRESS),
            metavar="URL",
            help=f"the running server (env LORAD_SERVER; {ADDRESS})",
        )
        parser.add_argument(
            "--control-key", default=os.environ.get("LORAD_CONTROL_KEY", ""), help="its key (env LORAD_CONTROL_KEY)"
        )
        parser.add_argument("--json", action="store_true", help="as data")
        parser.set_defaults(run=later("lorad.control.command", "control"))
        return parser

    command("list", "a server's adapters: state, tier, generation, requests")
    load = command("load", "load an adapter, and wait until it can be served")
    load.add_argument("name")
    load.add_argument("source", help="a path below one of the server's roots, hf://, s3://, gs://, az://, https://")
    load.add_argument("--reload", action="store_true", help="replace what the name has")
    load.add_argument("--digest", default="", help="what the content must be, as an earlier load told it")
    load.add_argument("--pinned", action="store_true", help="keep it in pages")
    unload = command("unload", "take a name away; its requests end first")
    unload.add_argument("name")
    unload.add_argument("--within", type=float, default=None, metavar="SECONDS", help="then with an error")
    for name, help in (("pin", "keep adapters in pages"), ("unpin", "no longer keep them in pages")):
        command(name, help).add_argument("names", nargs="+", metavar="NAME")
    prewarm = command("prewarm", "bring adapters into pages ahead of their requests")
    prewarm.add_argument("names", nargs="+", metavar="NAME")
    prewarm.add_argument("--within", type=float, default=60.0, metavar="SECONDS", help="by when (60)")
