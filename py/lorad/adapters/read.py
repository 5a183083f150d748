"""Reading an adapter's folder as PEFT writes it. Nothing is ever written there."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lorad.adapters.reject import reject
from lorad.lazy import torch
from lorad.models.fields import shown
from lorad.models.safetensors_file import Entry, read_header, view
from lorad.named_file import is_folder, read_json

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
CONFIG_BYTES_MAX = 1 << 20
VOCABULARY_BYTES_MAX = 256 << 20


class AdapterFiles(NamedTuple):
    """An adapter's config and the directory of its tensors; their bytes are still on the disk."""

    folder: Path
    config: dict[str, Any]
    entries: dict[str, Entry]
    """By the key in the file."""
    token_ids: tuple[int, ...]
    """Ids of added tokens that tokenizer files in the folder name, ascending."""

    def load(self) -> dict[str, torch.Tensor]:
        """All tensors, which must be of `safetensors_file.FLOATS`, read at once and complete."""
        try:
            with open(self.folder / TENSORS, "rb") as file:
                unchanged = read_header(file) == self.entries
                file.seek(0)
                data = np.fromfile(file, dtype=np.uint8)
        except (OSError, ValueError):
            unchanged = False
        if not unchanged or (self.entries and max(entry.end for entry in self.entries.values()) != len(data)):
            raise reject("adapter_file", f"{TENSORS} changed while it was read; try again when it's complete")
        return {key: view(data, entry) for key, entry in self.entries.items()}


def read_adapter(path: str | Path) -> AdapterFiles:
    """Reads config and directory of the adapter in the folder `path`."""
    if not (isinstance(path, str | Path) and is_folder(path)):
        raise reject("adapter_missing", f"there is no folder {shown(str(path) if isinstance(path, Path) else path)}")
    folder = Path(path)
    if not (folder / CONFIG).is_file():
        raise reject("adapter_missing", f"the folder has no {CONFIG}{_other_format(folder)}")
    config = _json(folder, CONFIG, CONFIG_BYTES_MAX)
    if not isinstance(config, dict):
        raise reject("adapter_config", f"{CONFIG} isn't an object")
    parts = sorted(file.name for file in folder.glob("adapter_model-*-of-*")) + [
        file.name for file in folder.glob("adapter_model.safetensors.index.json")
    ]
    if parts:
        raise reject(
            "adapter_split",
            f"split adapters aren't supported ({parts[0]}, {len(parts)} such files): save it as one {TENSORS}",
        )
    if not (folder / TENSORS).is_file():
        raise reject("adapter_missing", f"the folder has no {TENSORS}{_other_format(folder)}")
    try:
        with open(folder / TENSORS, "rb") as file:
            entries = read_header(file)
    except OSError as error:
        raise reject("adapter_file", f"{TENSORS} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise reject("adapter_file", f"{TENSORS} isn't a readable safetensors file: {error}") from None
    return AdapterFiles(folder, config, entries, _token_ids(folder))


def _other_format(folder: Path) -> str:
    for pattern in ("adapter_model.bin", "adapter_model.pt", "*.bin", "*.pt", "*.pth"):
        for file in sorted(folder.glob(pattern)):
            return f"; {file.name} is a pickle, which can run code: save the adapter as safetensors"
    if (folder / "adapters.safetensors").is_file():
        return "; adapters.safetensors looks like MLX's format, which isn't supported: convert it to PEFT's"
    for file in sorted(folder.glob("*.gguf")):
        return f"; {file.name} is a GGUF adapter, which isn't supported: convert it to PEFT's format"
    return ""


def _token_ids(folder: Path) -> tuple[int, ...]:
    """Ids of added tokens in the tokenizer files that trainers save too; the files have no other effect."""
    found: set[int] = set()
    if (folder / "added_tokens.json").is_file():
        added = _json(folder, "added_tokens.json", VOCABULARY_BYTES_MAX)
        if isinstance(added, dict):
            found |= {value for value in added.values() if type(value) is int}
    if (folder / "tokenizer.json").is_file():
        whole = _json(folder, "tokenizer.json", VOCABULARY_BYTES_MAX)
        added = whole.get("added_tokens") if isinstance(whole, dict) else None
        if isinstance(added, list):
            found |= {item["id"] for item in added if isinstance(item, dict) and type(item.get("id")) is int}
    return tuple(sorted(found))


def _json(folder: Path, name: str, bytes_max: int) -> Any:
    try:
        return read_json(folder / name, bytes_max)
    except OSError as error:
        code = "adapter_config" if error.errno == errno.EFBIG else "adapter_file"
        raise reject(code, f"{name} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise reject("adapter_config", f"{name} isn't JSON: {error}") from None
