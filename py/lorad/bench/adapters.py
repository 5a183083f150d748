"""Adapters to measure with: small random weights on all linear modules, in PEFT's form, through the real loader."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from lorad.models.config import ModelConfig

TENSORS = "adapter_model.safetensors"
PARENTS = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn"}


def write_random(folder: Path, config: ModelConfig, rank: int, seed: int) -> Path:
    """Writes an adapter of this rank in bf16."""
    generator = torch.Generator().manual_seed(seed)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 0.01).bfloat16()

    tensors = {}
    for layer in range(config.layers):
        for module in config.modules():
            key = f"base_model.model.model.layers.{layer}.{PARENTS.get(module.name, 'mlp')}.{module.name}"
            tensors[f"{key}.lora_A.weight"] = weight(rank, module.in_features)
            tensors[f"{key}.lora_B.weight"] = weight(module.out_features, rank)
    folder.mkdir(parents=True)
    save_file(tensors, folder / TENSORS, metadata={"format": "pt"})
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": [module.name for module in config.modules()],
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return folder


def copy_changed(source: Path, to: Path, number: int) -> Path:
    """An adapter of the same size and other content, quickly: the last value of a file of bf16 is another."""
    to.mkdir()
    shutil.copy(source / "adapter_config.json", to)
    data = bytearray((source / TENSORS).read_bytes())
    data[-2:] = number.to_bytes(2, "little")  # a number below 1e-37: finite, whatever it is
    (to / TENSORS).write_bytes(data)
    return to
