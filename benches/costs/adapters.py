"""Random adapters, packed: what they hold doesn't change how long they take."""

from __future__ import annotations

import torch

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.adapters.image import AdapterImage, build_image
from lorad.models.config import ModelConfig


def random_image(config: ModelConfig, rank: int, seed: int, page_bytes: int) -> AdapterImage:
    """An adapter of this rank on all linear modules, in bf16, with small random weights."""
    generator = torch.Generator().manual_seed(seed)

    def weights(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 0.01).bfloat16()

    modules = tuple(
        ModuleLora(layer, number, rank, 1.0, weights(rank, module.in_features), weights(module.out_features, rank))
        for layer in range(config.layers)
        for number, module in enumerate(config.modules())
    )
    return build_image(CheckedAdapter(f"random-{seed}", f"{seed + 1:032x}", "bf16", modules), page_bytes)
