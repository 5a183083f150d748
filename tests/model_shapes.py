"""Shapes of models as they are served, for what is compiled but not run."""

from __future__ import annotations

from typing import NamedTuple

import torch

from lorad.kernels.pages import Pages


class Shape(NamedTuple):
    """What kernels know of a model."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    window: int | None = None


LLAMA_3_8B = Shape(32, 32, 8, 128, 4096, 14336)
SMOLLM2_135M = Shape(30, 9, 3, 64, 576, 1536)
GEMMA_3_1B = Shape(26, 4, 1, 256, 1152, 6912, window=512)
PHI_2 = Shape(32, 32, 32, 80, 2560, 10240)
SHAPES = [LLAMA_3_8B, SMOLLM2_135M, GEMMA_3_1B, PHI_2]


def empty_pages(shape: Shape, dtype: torch.dtype, *, page_tokens: int = 16) -> Pages:
    """A few pages, and lines of many."""
    used = shape.layers * 2 * shape.kv_heads * page_tokens * shape.head_dim * dtype.itemsize
    arena = torch.empty(4, -(-used // 64) * 64, dtype=torch.uint8)
    table = torch.empty(64, 512, dtype=torch.int32)
    name = str(dtype).removeprefix("torch.")
    return Pages(arena, table, shape.layers, shape.kv_heads, page_tokens, shape.head_dim, name)


def empty_qkv(shape: Shape, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """What the first product of a layer writes."""
    return torch.empty(tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, dtype=dtype)


def ints(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32)
