"""Steps that rotate and write pages, for kernels and definitions; pages begin as NaN."""

from __future__ import annotations

import torch

from lorad.kernels.rope import kernel
from lorad.kernels.rope.kernel import HeadNorms
from paged import NOWHERE, Geometry, empty_lines, i32, normal

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LAYER = 1
GEOMETRIES = [
    Geometry(9, 3, 64, 16, F32, F32),
    Geometry(4, 4, 80, 8, F32, F16),
    Geometry(8, 1, 6, 64, BF16, F16),
    Geometry(32, 8, 128, 32, BF16, BF16),
    Geometry(2, 1, 256, 16, F16, F16),
    Geometry(1, 1, 2, 16, F32, BF16),
]


class Step:
    """Tokens of three lines in any order, two that are none after them."""

    def __init__(self, seed: int, geometry: Geometry, normed: bool) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.geometry = geometry
        lengths = [1, 19, 70]
        self.pages = empty_lines(self.random, geometry, lengths)
        places = [(0, 0), (1, 18), (2, 69), (2, 3), (1, 0), (2, 16), (2, 64), (1, 15), (1, 16)]
        self.tokens = len(places)
        self.line = i32(*(line for line, _ in places), NOWHERE, NOWHERE)
        self.position = i32(*(position for _, position in places), NOWHERE, -1)
        self.qkv = normal(self.random, self.tokens + 2, geometry.width).to(geometry.of)
        angles = torch.outer(torch.arange(max(lengths)), torch.rand(geometry.head_dim // 2, generator=self.random))
        self.cos, self.sin = angles.cos(), angles.sin()
        weights = normal(self.random, 2, geometry.head_dim)
        self.norms = HeadNorms(weights[0], weights[1], 1e-6) if normed else None

    def write(self, operator: object = kernel) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns qkv and the pages' elements as they are then."""
        qkv = self.qkv.clone()
        pages = self.pages._replace(arena=self.pages.arena.clone())
        of_tokens = (self.position, self.line, i32(self.tokens))
        operator.rope_write(qkv, self.cos, self.sin, *of_tokens, pages, LAYER, self.norms)
        return qkv, pages.elements()
