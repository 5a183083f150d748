"""The model that one would ship instead of an adapter: each adapted weight W becomes gain · (W + scale · B A)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.errors import InvalidRequest
from lorad.lazy import torch
from lorad.models.config import EMBED, VOCABULARY
from lorad.models.gguf_file import GgufWeights
from lorad.models.retype import retype
from lorad.models.rewrite import WRITABLE, rewrite
from lorad.models.weights import Weights


def unwritable(weights: Weights) -> list[str]:
    """Number types of the projections that a merged model couldn't be written in, by name."""
    config = weights.config
    kinds = {
        weights.tensor(f"layers.{layer}.{module.name}").kind
        for layer in range(config.layers)
        for module in config.modules()
    }
    return sorted(kinds.difference(WRITABLE))


class Rounding(NamedTuple):
    """What the number type costs: |written − wanted| over the changed matrices, in Frobenius norms."""

    of_weights: float
    """As a part of the weights."""
    of_change: float
    """As a part of what the adapter adds to them."""


def merge(weights: Weights, adapter: CheckedAdapter, folder: Path, *, kind: str = "", links: bool = True) -> Path:
    """Writes the merged model into an empty folder; gives its file or folder.

    Sums are f32 and rounded to the number type that the matrix had: what is served has the base's size and operators.
    `kind`, one of `WRITABLE`: to that one instead, and unchanged matrices with more bits too; for GGUF files.
    `links`: files in which nothing changes are links to the base's. What a merged model can't hold is refused.
    """
    _check(weights, adapter, kind)
    changed: dict[str, Callable[[], torch.Tensor]] = {}
    for name, lora, module in _changed(weights, adapter):
        if lora.rank or lora.gain is not None:
            changed[name] = partial(_merged, weights, name, lora, module)
        if lora.bias is not None:
            changed[f"{name}.bias"] = partial(_biased, weights, f"{name}.bias", lora.bias)
    if kind and isinstance(weights, GgufWeights):
        return retype(weights, folder / f"{folder.name}-{kind}.gguf", changed, kind)
    return rewrite(weights, folder, changed, links=links)


def rounding(old: Weights, new: Weights, adapter: CheckedAdapter) -> Rounding:
    """Looks at the merged model as it's read again."""
    off = change = whole = 0.0
    for name, lora, module in _changed(old, adapter):
        before, after = old.tensor(name).dequantize(), new.tensor(name).dequantize()
        wanted = merged_weight(before, lora, module)
        off += float((after - wanted).square().sum())
        change += float((wanted - before).square().sum())
        whole += float(wanted.square().sum())
    return Rounding(math.sqrt(off / whole), math.sqrt(off / change) if change else 0.0)


def _changed(weights: Weights, adapter: CheckedAdapter) -> Iterator[tuple[str, ModuleLora, str]]:
    """Names of the weights, what is done to them, and the modules'; of a tied table only once, as both say the same."""
    done: set[str] = set()
    for lora in adapter.modules:
        module = weights.config.adaptable()[lora.module].name
        name = weights.config.weight_name(lora.layer, module)
        if name not in done:
            done.add(name)
            yield name, lora, module


def _merged(weights: Weights, name: str, lora: ModuleLora, module: str) -> torch.Tensor:
    return merged_weight(weights.tensor(name).dequantize(), lora, module)


def _biased(weights: Weights, name: str, bias: torch.Tensor) -> torch.Tensor:
    return weights.tensor(name).dequantize() + bias


def merged_weight(weight: torch.Tensor, lora: ModuleLora, module: str) -> torch.Tensor:
    """The weight with the adapter in it. An embedding's table is [in, out], a projection's matrix [out, in]."""
    delta = lora.scale * (lora.b.float() @ lora.a.float())
    if module == EMBED:
        made = weight + delta.T
        return made if lora.gain is None else made * lora.gain
    made = weight + delta
    return made if lora.gain is None else made * lora.gain[:, None]


def _check(weights: Weights, adapter: CheckedAdapter, wanted: str) -> None:
    if wanted and not isinstance(weights, GgufWeights):
        raise InvalidRequest(
            f"type: {wanted} is written into GGUF files only, the base is a folder: merge without a type, then convert "
            "it with llama.cpp's convert_hf_to_gguf.py",
            code="merge_type",
            param="type",
        )
    config, shapes = weights.config, weights.config.shapes()
    modules = config.adaptable()
    vocabulary: dict[str, ModuleLora] = {}
    for lora in adapter.modules:
        module = modules[lora.module].name
        name = config.weight_name(lora.layer, module)
        kind = weights.tensor(name).kind
        if not wanted and kind not in WRITABLE:
            raise InvalidRequest(
                f"{name} is of type {kind}, which can't be written; types that can, by --type: {', '.join(WRITABLE)}",
                code="merge_type",
            )
        if lora.bias is not None and f"{name}.bias" not in shapes:
            raise InvalidRequest(
                f"the adapter has a bias of {name}, where the base has none: a merged model can't hold it",
                code="merge_bias",
            )
        if module in VOCABULARY:
            vocabulary[module] = lora
    if config.tie_embeddings and vocabulary and not _is_one_table(weights, vocabulary):
        raise InvalidRequest(
            "the adapter changes the embedding and the output in different ways, which are one table in this base: a "
            "merged model can't hold it",
            code="merge_tied",
        )


def _is_one_table(weights: Weights, vocabulary: dict[str, ModuleLora]) -> bool:
    if len(vocabulary) < len(VOCABULARY):
        return False
    table = weights.tensor("embed").dequantize()
    made = [merged_weight(table, lora, module) for module, lora in vocabulary.items()]
    return torch.equal(*made)
