"""`lorad adapters convert`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lorad.adapters.convert import ROUNDINGS, Converted, convert, read_source
from lorad.adapters.reject import readable
from lorad.adapters.staged import staged
from lorad.errors import InvalidRequest
from lorad.models.open import open_model

FORMATS = {"peft": "PEFT safetensors", "gguf": "llama.cpp GGUF"}


def run_convert(arguments: argparse.Namespace) -> int:
    """Writes the adapter and says what was found when it was read again."""
    output: Path = arguments.output
    if (output.suffix == ".gguf") != (arguments.to == "gguf"):
        raise InvalidRequest(
            f"output: a .gguf file with --to gguf, a folder of another name with --to peft; got {output} with --to "
            f"{arguments.to}",
            code="output_name",
            param="output",
        )
    with staged(output) as made:
        weights = open_model(arguments.model)
        source = read_source(arguments.source, weights, arguments.max_lora_rank)
        found = convert(
            source, made, weights, to=arguments.to, dtype=arguments.dtype, max_lora_rank=arguments.max_lora_rank
        )
    kept = f"generation {found.generation}"
    kept += " as before" if found.generation == source.checked.generation else f", before {source.checked.generation}"
    sys.stdout.write(
        f"{output}: {arguments.source} ({source.files.format}, {', '.join(source.files.types)}) as "
        f"{FORMATS[arguments.to]} in {found.dtype}, {len(source.pieces.modules)} modules. {_verdict(found)}; {kept}\n"
    )
    for warning in source.checked.warnings:
        sys.stdout.write(f"warning: {readable(warning)}\n")
    return 0


def _verdict(found: Converted) -> str:
    if found.exact:
        return "Read again, every number is the same"
    folded = ""
    if found.folded:
        folded = f", {found.folded} modules' scales are in B, as one alpha can't give them,"
    return (
        f"Read again, numbers are within {found.dtype}'s rounding (1 in {1 / ROUNDINGS[found.dtype]:,.0f}){folded} and "
        f"what a module adds is off by {found.off:.2g} of it at most"
    )
