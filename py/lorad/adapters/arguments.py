"""The flags of `lorad adapters`. Imports nothing that takes time: `lorad --help` reads this file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lorad import config
from lorad.control import arguments as control_arguments
from lorad.later import later

DTYPES = ("f32", "f16", "bf16")
"""Number types of adapters that are written."""


TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""Number types of models that are written: those of `lorad.models.rewrite`."""


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
        command.set_defaults(run=later("lorad.adapters.command", "adapters"))
        _add_rank_limit(command)
    _add_convert(commands)
    _add_merge(commands)
    _add_combine(commands)
    _add_stale(commands)
    control_arguments.add_commands(commands)


def _add_convert(commands: Any) -> None:
    convert = commands.add_parser(
        "convert", help="an adapter in another format or number type, and verify it", allow_abbrev=False
    )
    add = convert.add_argument
    add("source", type=Path, help="a folder, or a .gguf file, of any format that is read")
    add("output", type=Path, help="folder to write, or .gguf file")
    add("--model", required=True, help="its base: a GGUF file or a folder")
    add("--to", choices=["peft", "gguf"], default="peft", help="PEFT's safetensors or llama.cpp's GGUF (peft)")
    add("--dtype", choices=DTYPES, default="", help="of the result; default: the narrowest that holds all its numbers")
    convert.set_defaults(run=later("lorad.adapters.convert_command", "run_convert"))
    _add_rank_limit(convert)


def _add_merge(commands: Any) -> None:
    merge = commands.add_parser("merge", help="an adapter into a copy of its base, and verify it", allow_abbrev=False)
    merge.add_argument("output", type=Path, help="folder to write")
    merge.add_argument("adapter", type=Path, help="a folder, or a .gguf file")
    merge.add_argument(
        "--model", required=True, help="its base: a GGUF file or a folder; the result is of the same form"
    )
    merge.add_argument(
        "--type", choices=TYPES, default="", help="of the result's matrices; default: the base's own. For GGUF files"
    )
    merge.set_defaults(run=later("lorad.adapters.merge_command", "run_merge"))
    _add_rank_limit(merge)


def _add_combine(commands: Any) -> None:
    combine = commands.add_parser("combine", help="several adapters into one: an experiment", allow_abbrev=False)
    add = combine.add_argument
    add("output", type=Path, help="folder to write")
    add("adapters", nargs="+", metavar="PATH[:WEIGHT]", help="what to combine")
    add("--model", default="smollm2", help="their base (smollm2)")
    add(
        "--method",
        default="cat",
        help="as PEFT's add_weighted_adapter; cat (the default) and svd are exact or nearly so",
    )
    add("--density", type=float, default=1.0, help="share of values that ties, dare and magnitude_prune keep (1)")
    add("--rank", type=int, default=0, help="of the result of an svd method; 0: the highest of the parts (0)")
    add("--majority", default="total", help="how ties finds a sign: total or frequency (total)")
    add("--seed", type=int, default=0, help="of what dare keeps (0)")
    add("--dtype", choices=DTYPES, default="f32", help="of the result (f32)")
    add(
        "--texts",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="held-out texts to compare base, parts and result on, as JSON Lines of prompt and response, or of text; "
        "may be given several times",
    )
    combine.set_defaults(run=later("lorad.adapters.combine.command", "run_combine"))
    _add_rank_limit(combine)


def _add_stale(commands: Any) -> None:
    stale = commands.add_parser(
        "stale",
        help="registered adapters that another base leaves behind; ends with 0 if none, 1 if any, 2 if it can't tell",
        allow_abbrev=False,
    )
    stale.add_argument("--model", required=True, help="the new base")
    stale.add_argument("--state-file", default="", help="of the server; default: state.sqlite in the data folder")
    stale.add_argument("--json", action="store_true", help="as data")
    stale.set_defaults(run=later("lorad.store.stale", "stale"), refused_code=2)


def _rank(text: str) -> int:
    most = config.EngineConfig.__dataclass_fields__["max_lora_rank"].metadata["high"]
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"1 to {most}, got {text!r}")
    return int(text)


def _add_rank_limit(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--max-lora-rank",
        type=_rank,
        default=config.EngineConfig.__dataclass_fields__["max_lora_rank"].default,
        metavar="N",
        help="adapters above this rank are refused",
    )
