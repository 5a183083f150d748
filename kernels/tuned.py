"""Sizes that `benches/gpu/tune.py` found for a GPU, in the place of the defaults.

A file for each GPU: `tuned/<name>.json` here, or in a folder of the user's, which comes first:

    {"gpu": "NVIDIA H200", "tables": {"lora": {"2,True,True": {"ranks": 16, "inputs": 128, …}}}}

What isn't in it stays as it is. Some sizes decide in which order is summed: so bits follow from the file, and never
from what else is in a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lorad.kernels.attention import tiles as attention
from lorad.kernels.lora import tiles as lora

Tables = dict[str, dict[Any, Any]]
FOLDER = Path(__file__).parent / "tuned"
SIZE_MAX = 1024


def tables() -> Tables:
    """The tables that a file may change, by name: what the kernels read."""
    return {"lora": lora.DEFAULTS, "attention": attention.PREFILL, "attention_decode": attention.DECODE}


def file_name(gpu: str) -> str:
    """Of a GPU's file, by torch's name of it."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json"


def key_text(key: tuple[object, ...]) -> str:
    """A key of a table as a file has it."""
    return ",".join(str(part) for part in key)


def read(path: Path) -> Tables:
    """A file's sizes. ValueError names what in it isn't a table, a key or a size: a power of two up to 1024."""
    try:
        given = json.loads(path.read_text())["tables"]
        named = {table: dict(entries) for table, entries in dict(given).items()}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: not a file of tuned sizes ({error})") from None
    known, found = tables(), Tables()
    for table, entries in named.items():
        if table not in known:
            raise ValueError(f"{path.name}: no table {table!r}; there are {', '.join(known)}")
        keys = {key_text(key): key for key in known[table]}
        for text, sizes in entries.items():
            if text not in keys:
                raise ValueError(f"{path.name}: {table} has no {text!r}; it has {'; '.join(keys)}")
            found.setdefault(table, {})[keys[text]] = _tiles(path, f"{table} {text}", known[table][keys[text]], sizes)
    return found


def _tiles(path: Path, where: str, usual: Any, sizes: Mapping[str, object]) -> Any:
    if not isinstance(sizes, dict) or set(sizes) != set(usual._fields):
        raise ValueError(f"{path.name}: {where} wants {', '.join(usual._fields)}, has {sizes!r}")
    for name, size in sizes.items():
        limit = 8 if name == "stages" else SIZE_MAX
        right = type(size) is int and 1 <= size <= limit and (name == "stages" or size & (size - 1) == 0)
        if not right:
            raise ValueError(
                f"{path.name}: {where}: {name} is a power of two (stages: any) up to {limit}, got {size!r}"
            )
    return type(usual)(**sizes)


def write(path: Path, gpu: str, found: Tables) -> None:
    """Writes a file that `read` reads."""
    shown = {
        table: {key_text(key): tiles._asdict() for key, tiles in entries.items()} for table, entries in found.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"gpu": gpu, "tables": shown}, indent=2) + "\n")


def use(gpu: str, *folders: Path) -> Path | None:
    """Has the kernels of this process take a GPU's sizes from the first folder with a file for it, the package's last.
    ValueError as in `read`; nothing has changed then."""
    for folder in (*folders, FOLDER):
        if (path := folder / file_name(gpu)).is_file():
            for table, entries in read(path).items():
                tables()[table].update(entries)
            return path
    return None
