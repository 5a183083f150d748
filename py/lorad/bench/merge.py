"""The model that a user would ship instead of an adapter: W + scale · B A in place of each W."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from lorad.adapters.checked import CheckedAdapter
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


def merge(weights: Weights, adapter: CheckedAdapter, folder: Path) -> Path:
    """Writes the merged model into an empty folder; gives its file or folder.

    Sums are f32 and rounded to the number type that the matrix had: what is served has the base's size and operators.
    """

    def merged() -> Iterator[tuple[str, torch.Tensor]]:
        modules = weights.config.modules()
        for lora in adapter.modules:
            name = f"layers.{lora.layer}.{modules[lora.module].name}"
            yield name, weights.tensor(name).dequantize() + lora.scale * (lora.b.float() @ lora.a.float())

    return rewrite(weights, folder, merged())
