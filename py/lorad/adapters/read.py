"""From a path to an adapter's files: finds out the format and has its reader read it. Nothing is ever written there."""

from __future__ import annotations

from pathlib import Path

from lorad.adapters.features import BY_NAME
from lorad.adapters.files import CONFIG, AdapterFiles, read_json
from lorad.adapters.gguf_files import read_gguf
from lorad.adapters.mlx_files import is_mlx, read_mlx
from lorad.adapters.peft_files import read_peft
from lorad.adapters.reject import reject
from lorad.adapters.shards import TENSORS
from lorad.models.config import ModelConfig
from lorad.models.fields import shown
from lorad.named_file import is_file, is_folder

__all__ = ["AdapterFiles", "read_adapter"]


def read_adapter(path: str | Path, base: ModelConfig | None = None) -> AdapterFiles:
    """Reads config and directory of the adapter at `path`: a folder, or a GGUF file.

    `base` is what the adapter is for. Without one, what only a base can tell isn't done: see the readers.
    """
    if not isinstance(path, str | Path):
        raise reject("adapter_missing", f"there is no folder {shown(path)}")
    folder = Path(path)
    if folder.suffix == ".gguf" and is_file(folder):
        return read_gguf(folder, base)
    if is_file(folder):
        raise reject("adapter_missing", f"{folder.name} is neither a folder nor a .gguf file{_hint(folder)}")
    if not is_folder(folder):
        raise reject("adapter_missing", f"there is no folder {shown(str(path))}")
    config = read_json(folder, CONFIG) if (folder / CONFIG).is_file() else None
    if config is not None and not isinstance(config, dict):
        raise reject("adapter_config", f"{CONFIG} isn't an object")
    if config is not None and is_mlx(config):
        return read_mlx(folder, config, base)
    found = None if config is None else read_peft(folder, config)
    # Converters write beside what they convert, so PEFT's files come first.
    if found is None:
        found = _only_gguf(folder, base)
    if found is None:
        raise reject(
            "adapter_missing", f"the folder has no {CONFIG if config is None else TENSORS}{_other_format(folder)}"
        )
    return found


def _only_gguf(folder: Path, base: ModelConfig | None) -> AdapterFiles | None:
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise reject(
            "adapter_missing", f"the folder has {len(files)} GGUF files, {files[0].name} first: give the path of one"
        )
    return read_gguf(files[0], base) if files else None


def _other_format(folder: Path) -> str:
    for pattern in ("adapter_model.bin", "adapter_model.pt", "*.bin", "*.pt", "*.pth", "*.safetensors", "*.npz"):
        for file in sorted(folder.glob(pattern)):
            return _hint(file)
    return ""


def _hint(file: Path) -> str:
    """What to do with a file that isn't read."""
    if file.suffix in (".bin", ".pt", ".pth"):
        return f"; {file.name} {BY_NAME['pickle'].refusal}"
    if file.suffix == ".npz":
        return f"; {file.name} is of an old version of MLX: train or convert it with mlx-lm, to adapters.safetensors"
    if file.suffix == ".safetensors" and (file.parent / CONFIG).is_file():
        return f"; {CONFIG} is PEFT's, and {file.name} isn't what PEFT calls its tensors: {TENSORS}"
    if file.suffix == ".safetensors":
        return f"; {file.name} alone doesn't say rank and scale: {CONFIG} belongs beside it"
    return ""
