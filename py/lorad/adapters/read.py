"""From a path to an adapter's files: finds out the format and has its reader read it. Nothing is ever written there."""

from __future__ import annotations

from pathlib import Path

from lorad.adapters.files import CONFIG, AdapterFiles, read_json
from lorad.adapters.parts import TENSORS
from lorad.adapters.peft_files import read_peft
from lorad.adapters.reject import reject
from lorad.models.config import ModelConfig

__all__ = ["AdapterFiles", "read_adapter"]


def read_adapter(path: str | Path, base: ModelConfig | None = None) -> AdapterFiles:
    """Reads config and directory of the adapter at `path`.

    `base` is what the adapter is for. Without one, what only a base can tell isn't done: see the readers.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise reject("adapter_missing", f"there is no folder {str(path)!r}")
    if not (folder / CONFIG).is_file():
        raise reject("adapter_missing", f"the folder has no {CONFIG}{_other_format(folder)}")
    config = read_json(folder, CONFIG)
    if not isinstance(config, dict):
        raise reject("adapter_config", f"{CONFIG} isn't an object")
    found = read_peft(folder, config)
    if found is None:
        raise reject("adapter_missing", f"the folder has no {TENSORS}{_other_format(folder)}")
    return found


def _other_format(folder: Path) -> str:
    for pattern in ("adapter_model.bin", "adapter_model.pt", "*.bin", "*.pt", "*.pth"):
        for file in sorted(folder.glob(pattern)):
            return f"; {file.name} is a pickle, which can run code: save the adapter as safetensors"
    if (folder / "adapters.safetensors").is_file():
        return "; adapters.safetensors looks like MLX's format, which isn't supported: convert it to PEFT's"
    for file in sorted(folder.glob("*.gguf")):
        return f"; {file.name} is a GGUF adapter, which isn't supported: convert it to PEFT's format"
    return ""
