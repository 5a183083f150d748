"""The model that one would ship instead of an adapter: each adapted weight W becomes gain · (W + scale · B A)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.errors import InvalidRequest
from lorad.lazy import torch
from lorad.models.config import EMBED, VOCABULARY
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


def merge(weights: Weights, adapter: CheckedAdapter, folder: Path, *, links: bool = True) -> Path:
    """Writes the merged model into an empty folder; gives its file or folder.

    Sums are f32 and rounded to the number type that the matrix had: what is served has the base's size and operators.
    `links`: files in which nothing changes are links to the base's. What a merged model can't hold is refused.
    """
    _check(weights, adapter)

    def merged() -> Iterator[tuple[str, torch.Tensor]]:
        modules = weights.config.adaptable()
        done: set[str] = set()
        for lora in adapter.modules:
            name = weights.config.weight_name(lora.layer, modules[lora.module].name)
            if name in done:  # a tied table, of which both halves say the same
                continue
            done.add(name)
            if lora.rank or lora.gain is not None:
                yield name, _weight(weights.tensor(name).dequantize(), lora, modules[lora.module].name)
            if lora.bias is not None:
                yield f"{name}.bias", weights.tensor(f"{name}.bias").dequantize() + lora.bias

    return rewrite(weights, folder, merged(), links=links)


def _weight(weight: torch.Tensor, lora: ModuleLora, module: str) -> torch.Tensor:
    """The weight with the adapter in it. An embedding's table is [in, out], a projection's matrix [out, in]."""
    delta = lora.scale * (lora.b.float() @ lora.a.float())
    if module == EMBED:
        made = weight + delta.T
        return made if lora.gain is None else made * lora.gain
    made = weight + delta
    return made if lora.gain is None else made * lora.gain[:, None]


def _check(weights: Weights, adapter: CheckedAdapter) -> None:
    config, shapes = weights.config, weights.config.shapes()
    modules = config.adaptable()
    vocabulary: dict[str, ModuleLora] = {}
    for lora in adapter.modules:
        module = modules[lora.module].name
        name = config.weight_name(lora.layer, module)
        kind = weights.tensor(name).kind
        if kind not in WRITABLE:
            raise InvalidRequest(
                f"{name} is of type {kind}, which can't be written; types that can: {', '.join(WRITABLE)}",
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
    made = [_weight(table, lora, module) for module, lora in vocabulary.items()]
    return torch.equal(*made)
