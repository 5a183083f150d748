"""An adapter into a folder, in PEFT's form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from lorad.adapters.combine.combine import Combined
from lorad.adapters.keys import module_path
from lorad.errors import InvalidRequest
from lorad.lazy import torch
from lorad.models.config import EMBED, ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def write_adapter(folder: Path, modules: Iterable[Combined], config: ModelConfig, dtype: str, about: str) -> None:
    """Writes plain LoRA of scale 1 into a new folder. `about`: how it was made, for whoever opens the file."""
    if folder.exists() or folder.is_symlink():
        raise InvalidRequest(f"{folder} exists already", code="output_exists", param="output")
    names = [module.name for module in config.adaptable()]
    tensors: dict[str, torch.Tensor] = {}
    ranks: dict[str, int] = {}
    for made in modules:
        path = module_path(made.layer, names[made.module])
        ranks[path] = len(made.a)
        for half, values in (("A", made.a), ("B", made.b)):
            rounded = values.to(DTYPES[dtype]).contiguous()
            if not bool(torch.isfinite(rounded).all()):
                raise InvalidRequest(
                    f"{path}: lora_{half} has values that {dtype} can't hold", code="output_range", param="dtype"
                )
            key = f"lora_embedding_{half}" if names[made.module] == EMBED else f"lora_{half}.weight"
            tensors[f"base_model.model.{path}.{key}"] = rounded
    most = max(ranks.values())
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": most,
        "lora_alpha": most,
        "rank_pattern": {path: rank for path, rank in ranks.items() if rank != most},
        "alpha_pattern": {path: rank for path, rank in ranks.items() if rank != most},
        "target_modules": sorted({path.rpartition(".")[2] for path in ranks}),
        "base_model_name_or_path": config.name,
    }
    try:
        folder.mkdir(parents=True)
        try:
            save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt", "made": about})
            (folder / "adapter_config.json").write_text(json.dumps(fields, indent=1) + "\n")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except (OSError, SafetensorError) as error:
        raise InvalidRequest(f"{folder} can't be written: {error}", code="output_write", param="output") from None
