"""PEFT adapters rewritten in other formats, as their own converters and trainers write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file

from blocks import quantize
from lorad.models.config import ModelConfig
from tiny import gguf_name, permuted

PREFIX = "base_model.model."
UNSLOTH = (
    r"(?:.*?(?:vision|image|visual|patch|embed|encoder|language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|"
    r"dense).*?(?:k_proj|v_proj|q_proj|out_proj|o_proj|gate_proj|up_proj|down_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\."
    r"(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\.(?:(?:k_proj|v_proj|q_proj|o_proj|gate_proj|up_proj|"
    r"down_proj)))"
)
"""target_modules as Unsloth writes it."""


def to_gguf(
    folder: Path,
    target: Path,
    config: ModelConfig,
    kind: str = "F32",
    *,
    keys: dict[str, Any] | None = None,
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = lambda tensors: tensors,
) -> Path:
    """Writes a PEFT adapter as llama.cpp's convert_lora_to_gguf.py does.

    `keys`: further keys, or None to leave one out that is written otherwise. `change`: of the tensors by llama.cpp's
    names, as they are about to be written.
    """
    arch = {"mistral": "llama"}.get(config.architecture, config.architecture)
    lora = json.loads((folder / "adapter_config.json").read_text())
    writer = gguf.GGUFWriter(target, arch)
    written: dict[str, Any] = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(lora["lora_alpha"]),
        "general.name": "Adapter",
        "general.quantization_version": 2,
    }
    for key, value in (written | (keys or {})).items():
        if isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_string(key, value)
    for name, tensor in change(_gguf_tensors(folder, config, arch)).items():
        values = tensor.float().contiguous().numpy()
        # A row that isn't made of whole blocks falls back to F16.
        block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
        number = gguf.GGMLQuantizationType["F16" if values.shape[-1] % block else kind if values.ndim > 1 else "F32"]
        writer.add_tensor(name, quantize(values, number.name), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _gguf_tensors(folder: Path, config: ModelConfig, arch: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for key, tensor in load_file(folder / "adapter_model.safetensors").items():
        name, half = key.removeprefix(PREFIX).removesuffix(".weight").replace("lora_embedding_", "lora_").rsplit(".", 1)
        heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.rsplit(".", 1)[-1], 0)
        place = f"{gguf_name(name + '.weight', arch)}.{half.lower()}"
        if arch == "llama" and half == "lora_B" and heads:
            found[place] = torch.from_numpy(permuted(tensor.float().numpy(), heads)).to(tensor.dtype)
        else:
            found[place] = tensor.T if name.endswith("embed_tokens") and half == "lora_A" else tensor
    return found


def to_mlx(folder: Path, target: Path, config: ModelConfig, **changes: Any) -> Path:
    """Writes a PEFT adapter of one rank and scale as mlx-lm's trainer does; `changes` of its config, `...` removes."""
    lora = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    found = {
        key.removeprefix(PREFIX).removesuffix(".weight").replace("lora_A", "lora_a").replace("lora_B", "lora_b"): (
            tensor.T.contiguous()
        )
        for key, tensor in tensors.items()
    }
    names = {key.split(".", 3)[3].rsplit(".", 1)[0] for key in found if key.startswith("model.layers.")}
    written = {
        "adapter_path": "adapters",
        "batch_size": 4,
        "fine_tune_type": "lora",
        "iters": 1000,
        "learning_rate": 1e-05,
        "lora_parameters": {
            "rank": lora["r"],
            "scale": lora["lora_alpha"] / lora["r"],
            "dropout": 0.0,
            "keys": sorted(names),
        },
        "mask_prompt": False,
        "model": "somebody/model",
        "num_layers": config.layers,
        "seed": 0,
        "train": True,
    } | changes
    target.mkdir(parents=True, exist_ok=True)
    save_file(found, target / "adapters.safetensors", metadata={"format": "mlx"})
    (target / "adapter_config.json").write_text(json.dumps({k: v for k, v in written.items() if v is not ...}))
    return target


def to_shards(path: Path, parts: int = 2) -> Path:
    """Rewrites an adapter as parts with an index, as transformers writes weights."""
    tensors = load_file(path / "adapter_model.safetensors")
    (path / "adapter_model.safetensors").unlink()
    places: dict[str, str] = {}
    for part in range(parts):
        name = f"adapter_model-{part + 1:05}-of-{parts:05}.safetensors"
        keys = sorted(tensors)[part::parts]
        save_file({key: tensors[key] for key in keys}, path / name)
        places |= dict.fromkeys(keys, name)
    size = sum(tensor.nbytes for tensor in tensors.values())
    (path / "adapter_model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": places})
    )
    return path
