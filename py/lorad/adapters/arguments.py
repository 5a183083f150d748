"""The flags of `lorad adapters`. Imports nothing that takes time: `lorad --help` reads this file."""

from __future__ import annotations

import argparse
from pathlib import Path

from lorad import config
from lorad.control import arguments as control_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the commands and their flags."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="adapters_command")
    check = commands.add_parser(
        "check", help="would these adapters load? ends with 1 if one is refused", allow_abbrev=False
    )
    check.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folders, or .gguf files")
    inspect = commands.add_parser("inspect", help="what is in one adapter, module by module", allow_abbrev=False)
    inspect.add_argument("paths", nargs=1, type=Path, metavar="PATH", help="a folder, or a .gguf file")
    for command in (check, inspect):
        command.add_argument("--model", default="", help="base to hold them against; default: each against itself only")
        command.add_argument("--json", action="store_true", help="as data")
        option = config.EngineConfig.__dataclass_fields__["max_lora_rank"]
        command.add_argument(
            "--max-lora-rank",
            type=int,
            default=option.default,
            metavar="N",
            help="adapters above this rank are refused",
        )
    control_arguments.add_commands(commands)
