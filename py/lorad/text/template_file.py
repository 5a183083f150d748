"""Where a folder keeps its chat template: in a file of its own, else in the tokenizer's config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lorad.named_file import read_text

FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"


def read_template(folder: Path, config: Any, bytes_max: int) -> str:
    """The source of a folder's template, of at most so many bytes; "" if it has none. `config`: what its
    tokenizer_config.json holds. OSError, or ValueError where it's no UTF-8: it can't be read."""
    try:
        return read_text(folder / FILE, bytes_max)
    except FileNotFoundError:
        pass
    given = config.get("chat_template") if isinstance(config, dict) else None
    if isinstance(given, list):
        named = [entry for entry in given if isinstance(entry, dict) and entry.get("name") == "default"]
        given = named[-1].get("template") if named else None
    return given if isinstance(given, str) else ""
