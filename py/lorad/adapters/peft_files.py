"""Reading an adapter's folder as PEFT writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lorad.adapters.files import AdapterFiles, read_json
from lorad.adapters.shards import read_shards

VOCABULARY_BYTES_MAX = 256 << 20


def read_peft(folder: Path, config: dict[str, Any]) -> AdapterFiles | None:
    """`config` is what adapter_config.json holds; None if there are no tensors in a form that is read."""
    shards = read_shards(folder)
    if shards is None:
        return None
    return AdapterFiles(
        "PEFT", folder, config, shards.entries, shards.load, token_ids=_token_ids(folder), types=shards.types
    )


def _token_ids(folder: Path) -> tuple[int, ...]:
    """Ids of added tokens in the tokenizer files that trainers save too; the files have no other effect."""
    found: set[int] = set()
    if (folder / "added_tokens.json").is_file():
        added = read_json(folder, "added_tokens.json", VOCABULARY_BYTES_MAX)
        if isinstance(added, dict):
            found |= {value for value in added.values() if type(value) is int}
    if (folder / "tokenizer.json").is_file():
        whole = read_json(folder, "tokenizer.json", VOCABULARY_BYTES_MAX)
        added = whole.get("added_tokens") if isinstance(whole, dict) else None
        if isinstance(added, list):
            found |= {item["id"] for item in added if isinstance(item, dict) and type(item.get("id")) is int}
    return tuple(sorted(found))
