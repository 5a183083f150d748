"""Products of real models, few rows and many."""

from __future__ import annotations

import torch

from lorad.kernels.matmul.kernel import matmul
from lorad.kernels.matmul.tiles import TILES

# (in, out) of some products of Llama 3 8B, SmolLM2 135M, and an odd one.
PRODUCTS = [(4096, 6144), (14336, 4096), (576, 960), (1536, 576), (100, 33)]


def cases() -> None:
    for of, of_y in [
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float16),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
    ]:
        for inputs, outputs in PRODUCTS:
            weight = torch.empty(outputs, inputs, dtype=of)
            for tiles in TILES[of.itemsize]:
                n = tiles.tokens
                matmul(torch.empty(n, outputs, dtype=of_y), torch.empty(n, inputs, dtype=of), weight, None)
            bias = torch.empty(outputs, dtype=of)
            matmul(torch.empty(1, outputs, dtype=of_y), torch.empty(1, inputs, dtype=of), weight, bias)
