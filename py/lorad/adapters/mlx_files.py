"""Reading an adapter's folder as mlx-lm writes it (`mlx_lm.lora`).

`….q_proj.lora_a` is [in, rank] and `lora_b` [rank, out]: PEFT's A and B, transposed. `scale` multiplies their product
as it is. Beside what is read here adapter_config.json holds all options of the training; mlx-lm's own loader looks at
`fine_tune_type`, `num_layers` and `lora_parameters` only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lorad.adapters.features import BY_NAME, Feature
from lorad.adapters.files import UNKNOWN, AdapterFiles
from lorad.adapters.keys import parse_key, path_in_model
from lorad.adapters.reject import reject
from lorad.adapters.shards import Shards, read_shards
from lorad.lazy import torch
from lorad.models.config import ModelConfig
from lorad.models.fields import shown

TENSORS = "adapters.safetensors"
_HALF = re.compile(r"(?P<module>.*)\.lora_(?P<half>[ab])")
_RANK_MAX = 1 << 20
"""Far above any; what is allowed is held against the tensors."""
_ALPHA_MAX = float(np.finfo(np.float32).max)
_PARAMETERS = {"rank", "scale", "dropout", "keys", "alpha"}


def is_mlx(config: Mapping[str, Any]) -> bool:
    """Does adapter_config.json look like MLX's?"""
    return "peft_type" not in config and ("lora_parameters" in config or "fine_tune_type" in config)


def read_mlx(folder: Path, config: Mapping[str, Any], base: ModelConfig | None) -> AdapterFiles:
    """`config` is what adapter_config.json holds. Without a base, num_layers isn't held against the tensors."""
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora":
        feature = BY_NAME.get(f"MLX: {'DoRA' if kind == 'dora' else kind}", BY_NAME["methods other than LoRA"])
        raise _refused(f"fine_tune_type = {shown(kind)}", feature)
    rank, scale, keys = _parameters(config.get("lora_parameters"))
    shards = read_shards(folder, TENSORS)
    if shards is None:
        raise reject("adapter_missing", f"the folder has no {TENSORS}")
    names = {_key(name): name for name in shards.entries}
    _check_kept(names, keys, _layers(config), base)
    entries = {key: shards.entries[name] for key, name in names.items()}
    entries = {key: entry._replace(shape=entry.shape[::-1]) for key, entry in entries.items()}
    # Of rank · scale and rank PEFT makes the scale again: exactly, but for a last bit that f32 doesn't have.
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": scale * rank}
    return AdapterFiles("MLX", folder, fields, entries, partial(_load, shards, names), types=shards.types, names=names)


def _parameters(found: Any) -> tuple[int, float, frozenset[str] | None]:
    if not isinstance(found, dict):
        raise reject("adapter_config", "lora_parameters wants an object with rank and scale")
    for field in found:
        if field not in _PARAMETERS:
            raise _refused(f"lora_parameters.{field}", BY_NAME["fields that aren't known"])
    if found.get("alpha") is not None:
        raise _refused("lora_parameters.alpha", BY_NAME["MLX: alpha"])
    rank, scale, keys = found.get("rank"), found.get("scale"), found.get("keys")
    if type(rank) is not int or not 1 <= rank <= _RANK_MAX:
        raise reject("adapter_config", f"lora_parameters.rank wants an integer from 1 to {_RANK_MAX}, is {shown(rank)}")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) * rank <= _ALPHA_MAX:
        raise reject("adapter_config", f"lora_parameters.scale wants a finite number, is {shown(scale)}")
    if keys is None:
        return rank, float(scale), None
    if not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        raise reject("adapter_config", "lora_parameters.keys wants a list of names")
    return rank, float(scale), frozenset(keys)


def _layers(config: Mapping[str, Any]) -> int | None:
    """How many layers from the last are adapted; None: all."""
    count = config.get("num_layers", config.get("lora_layers"))
    if count is None:
        return None
    if type(count) is not int:
        raise reject("adapter_config", f"num_layers wants an integer, is {shown(count)}")
    return count if count > 0 else None


def _key(name: str) -> str:
    """PEFT's key; one that `check` refuses if there is none, even if the name is like one of PEFT's."""
    match = _HALF.fullmatch(name)
    if name.endswith(".m") and parse_key(f"{name.removesuffix('.m')}.lora_A.weight"):
        raise _refused(f"tensor {name}", BY_NAME["MLX: DoRA"])
    if match is None:
        return UNKNOWN + name
    if match["module"].endswith("embed_tokens"):
        raise _refused(f"tensor {name}", BY_NAME["MLX: LoRA on the embedding"], " ")
    key = f"base_model.model.{match['module']}.lora_{match['half'].upper()}.weight"
    return key if match["module"] == "lm_head" or parse_key(key) else UNKNOWN + name


def _check_kept(
    names: Mapping[str, str], keys: frozenset[str] | None, layers: int | None, base: ModelConfig | None
) -> None:
    """Refuses tensors that mlx-lm would drop, since it adapts only what the config says."""
    for key, name in names.items():
        target = parse_key(key)
        if target is None:
            continue
        path = path_in_model(key)[1]
        inside = path.split(".", 3)[3]
        if keys is not None and not keys & {inside, path}:
            raise reject(
                "adapter_target",
                f"tensor {name} is for a module that lora_parameters.keys doesn't name: mlx-lm would drop it; correct "
                "the keys, or remove the tensors",
            )
        if layers is not None and base is not None and target.layer < base.layers - layers:
            raise reject(
                "adapter_target",
                f"tensor {name} is for layer {target.layer}, num_layers = {layers} means the last {layers} of the "
                f"base's {base.layers}: mlx-lm would drop it; correct num_layers, or remove the tensors",
            )


def _load(shards: Shards, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    tensors = shards.load()
    return {key: tensors[name].T for key, name in names.items()}


def _refused(what: str, feature: Feature, between: str = ": ") -> Exception:
    return reject(feature.code, f"{what}{between}{feature.refusal}")
