"""An adapter into a folder, in PEFT's form: one safetensors file and the config that says what its tensors are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from lorad.adapters.files import CONFIG
from lorad.adapters.keys import module_path
from lorad.adapters.pieces import DTYPES, Piece, Pieces
from lorad.errors import InvalidRequest
from lorad.lazy import torch
from lorad.models.config import EMBED, ModelConfig

_ENDINGS = {
    "A": "lora_A.weight",
    "B": "lora_B.weight",
    "magnitude": "lora_magnitude_vector",
    "lora_bias": "lora_B.bias",
    "whole": "weight",
    "rows": "token_adapter.trainable_tokens_delta",
}


def write_peft(folder: Path, pieces: Pieces, config: ModelConfig, dtype: str, about: str) -> None:
    """Writes a new folder; numbers are rounded to `dtype`, one of `DTYPES`. `about`: how it was made, for whoever opens
    the file. Scales are those of the pieces exactly: alpha = scale · rank."""
    tensors = {
        f"base_model.model.{_key(piece, part, config)}": rounded(tensor, dtype, _key(piece, part, config))
        for piece, part, tensor in pieces.tensors()
    }
    fields = _fields(pieces, config)
    try:
        folder.mkdir(parents=True)
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt", "made": about})
        (folder / CONFIG).write_text(json.dumps(fields, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        raise InvalidRequest(f"{folder} can't be written: {error}", code="output_write", param="output") from None


def rounded(tensor: torch.Tensor, dtype: str, name: str) -> torch.Tensor:
    """The tensor in another number type, contiguous; refused where that is too narrow for a value."""
    made = tensor.to(DTYPES[dtype]).contiguous()
    if not bool(torch.isfinite(made).all()):
        raise InvalidRequest(f"{name} has values that {dtype} can't hold", code="output_range", param="dtype")
    return made


def _key(piece: Piece, part: str, config: ModelConfig) -> str:
    name = config.adaptable()[piece.module].name
    path = module_path(piece.layer, name)
    if name == EMBED and part in "AB":
        return f"{path}.lora_embedding_{part}"
    if part == "bias":
        return f"{path}.base_layer.bias" if "A" in piece.parts else f"{path}.bias"
    return f"{path}.{_ENDINGS[part]}"


def _fields(pieces: Pieces, config: ModelConfig) -> dict[str, Any]:
    modules = config.adaptable()
    adapted = [(piece, modules[piece.module].name) for piece in pieces.modules if "A" in piece.parts]
    ranks = {(piece.layer, name): len(piece.parts["A"]) for piece, name in adapted}
    alphas = {(piece.layer, name): piece.scale * len(piece.parts["A"]) for piece, name in adapted}
    rank, rank_pattern = _patterns(ranks)
    alpha, alpha_pattern = _patterns(alphas)
    has = {part for _, part, _ in pieces.tensors()}
    fields: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": rank_pattern,
        "alpha_pattern": alpha_pattern,
        "target_modules": _targets([(piece.layer, name) for piece, name in adapted], config),
        "use_dora": "magnitude" in has,
        "lora_bias": "lora_bias" in has,
        "bias": pieces.bias,
        "base_model_name_or_path": config.name,
    }
    if "whole" in has:
        fields["modules_to_save"] = [modules[piece.module].name for piece in pieces.modules if "whole" in piece.parts]
    if pieces.rows:
        fields["trainable_token_indices"] = {name: list(ids) for name, ids in pieces.rows.items()}
    return fields


def _patterns(values: Mapping[tuple[int, str], Any]) -> tuple[Any, dict[str, Any]]:
    """The usual value, and by PEFT's patterns the others: single modules first, as the first match counts."""
    if not values:
        return 1, {}
    usual = _usual(values.values())
    single: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for name in dict.fromkeys(name for _, name in values):
        own = {layer: value for (layer, other), value in values.items() if other == name}
        most = _usual(own.values())
        single |= {module_path(layer, name): _plain(value) for layer, value in own.items() if value != most}
        if most != usual:
            named[name] = _plain(most)
    return _plain(usual), single | named


def _usual(values: Any) -> Any:
    return Counter(values).most_common(1)[0][0]


def _plain(value: Any) -> Any:
    """A whole number without a point, as PEFT writes it."""
    return int(value) if value == int(value) else value


def _targets(places: list[tuple[int, str]], config: ModelConfig) -> list[str]:
    """Names of modules that are adapted in every layer, paths of others: PEFT would begin the rest anew."""
    found = []
    inner = {module.name for module in config.modules()}
    for name in sorted({name for _, name in places}):
        layers = [layer for layer, other in places if other == name]
        everywhere = name not in inner or len(layers) == config.layers
        found += [name] if everywhere else [module_path(layer, name) for layer in layers]
    return found
