"""`AdapterFiles`: an adapter on the disk in PEFT's terms, whatever format it is in.

A reader for each format (`peft_files`, `gguf_files`, `mlx_files`) gives one; all that comes after it (`check`,
`targets`, `report`) knows PEFT's keys, shapes and fields only.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lorad import named_file
from lorad.adapters.reject import reject
from lorad.lazy import torch
from lorad.models.safetensors_file import Entry

Format = Literal["PEFT", "GGUF", "MLX"]

CONFIG = "adapter_config.json"
CONFIG_BYTES_MAX = 1 << 20
UNKNOWN = "unknown."
"""No key of PEFT's begins like that."""


@dataclass(frozen=True)
class AdapterFiles:
    """Config and directory of an adapter; the tensors' bytes are still on the disk."""

    format: Format
    path: Path
    """The folder, or the file if it's one."""
    config: dict[str, Any]
    """Fields of PEFT's adapter_config.json."""
    entries: dict[str, Entry]
    """By PEFT's key; shapes and number types are those that `load` gives. Other formats' tensors that nothing in PEFT
    corresponds to have their own name behind `UNKNOWN`, which `check` refuses."""
    read: Callable[[], dict[str, torch.Tensor]]
    """Reads all tensors at once."""
    token_ids: tuple[int, ...] = ()
    """Ids of added tokens that tokenizer files in the folder name, ascending."""
    types: tuple[str, ...] = ()
    """Number types in the file, by the format's names, sorted."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The file's own name of a key, where it's another one."""

    def load(self) -> dict[str, torch.Tensor]:
        """All tensors by key, as `entries` says. Every entry's type must be one of `safetensors_file.FLOATS`."""
        return self.read()

    def in_own_words(self, message: str) -> str:
        """`message` with the file's own names instead of PEFT's keys."""
        keys = sorted((key for key in self.names if key in message), key=len, reverse=True)
        if not keys:
            return message
        return re.sub("|".join(map(re.escape, keys)), lambda match: self.names[match[0]], message)


def read_json(folder: Path, name: str, bytes_max: int = CONFIG_BYTES_MAX) -> Any:
    """A JSON file of the folder."""
    try:
        return named_file.read_json(folder / name, bytes_max)
    except OSError as error:
        code = "adapter_config" if error.errno == errno.EFBIG else "adapter_file"
        raise reject(code, f"{name} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise reject("adapter_config", f"{name} isn't JSON: {error}") from None
