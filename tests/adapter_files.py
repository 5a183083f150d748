"""Files that look like an adapter's, for tests that don't apply them."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path


def adapter_files(seed: int = 0, size: int = 1000) -> dict[str, bytes]:
    """Names and contents; other seeds, other tensors."""
    content = random.Random(seed).randbytes(size)
    config = json.dumps({"peft_type": "LORA", "r": 8, "seed": seed}).encode()
    return {"adapter_config.json": config, "adapter_model.safetensors": content}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """Writes them and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    """All but hidden files of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".")}


def digest_of_files(files: dict[str, bytes]) -> str:
    """The digest by its definition in docs/sources.md."""
    state = hashlib.sha256(b"lorad adapter 1\n")
    for name in sorted(files):
        state.update(f"{hashlib.sha256(files[name]).hexdigest()} {len(files[name])} {name}\n".encode())
    return state.hexdigest()
