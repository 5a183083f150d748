"""Adapters for tests: PEFT makes the modules, keys and config; the weights are random and strong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from lorad.models.config import MODULES, ModelConfig

STRENGTH = 0.5
"""Standard deviation of what an adapter adds to a projection's output, for inputs of deviation 1."""


def make_adapter(
    path: Path,
    config: ModelConfig,
    *,
    rank: int = 8,
    modules: Sequence[str] | str = MODULES,
    layers: Sequence[int] | None = None,
    alpha: float = 16,
    seed: int = 0,
    rslora: bool = False,
    dtype: torch.dtype = torch.float32,
    strength: float = STRENGTH,
    **peft_options: Any,
) -> Path:
    """Writes an adapter folder as PEFT does and returns it. `peft_options`: further fields of LoraConfig.

    B is scaled so that the effect is equally strong whatever rank and alpha are.
    """
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    targets = modules if isinstance(modules, str) else list(modules)
    lora = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        target_modules=targets,
        layers_to_transform=None if layers is None else list(layers),
        use_rslora=rslora,
        task_type="CAUSAL_LM",
        **peft_options,
    )
    with torch.device("meta"):
        model = get_peft_model(_skeleton(config), lora)
    scales = {
        name: module.scaling["default"]
        for name, module in model.base_model.model.named_modules()
        if hasattr(module, "lora_A") and "default" in module.scaling
    }
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for key, empty in sorted(get_peft_model_state_dict(model).items()):
        values = torch.randn(empty.shape, generator=generator)
        if key.endswith(".lora_A.weight"):
            values /= empty.shape[1] ** 0.5
        elif key.endswith(".lora_B.weight"):
            scale = scales[key.removeprefix("base_model.model.").split(".lora_B.")[0]]
            values *= strength / (abs(scale) * empty.shape[1] ** 0.5)
        tensors[key] = values.to(dtype)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(path)
    return path


@lru_cache(maxsize=4)
def _transformers_config(config: ModelConfig) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        tie_word_embeddings=config.tie_embeddings,
    )


def _skeleton(config: ModelConfig) -> Any:
    """The base without memory for its weights."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM(_transformers_config(config))


def edit_config(path: Path, **changes: Any) -> Path:
    """Changes fields of an adapter's config; `...` removes one."""
    file = path / "adapter_config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    return path


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor] | None]) -> Path:
    """Changes an adapter's tensors, in place or to what `change` returns."""
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    changed = change(tensors)
    save_file({k: v.contiguous() for k, v in (tensors if changed is None else changed).items()}, file)
    return path
