"""Four-bit products of real models, in the forms that files make of them."""

from __future__ import annotations

import torch

from lorad.kernels.int4.kernel import int4_matmul, workspace_shape
from lorad.kernels.int4.tiles import TILES
from lorad.kernels.int4.weight import Int4Weight

# (in, out) of some products of Llama 3 8B and SmolLM2 135M.
PRODUCTS = [(4096, 6144), (14336, 4096), (4096, 128256), (576, 960)]
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def cases() -> None:
    for inputs, outputs in PRODUCTS:
        for tiles in TILES[BF16.itemsize]:
            case(tiles.tokens, empty_weight(inputs, outputs, 128, F16), BF16, BF16)
    for group, of_scale in [(32, F16), (32, F32), (128, F32), (0, F16)]:
        weight = empty_weight(4096, 4096, group, of_scale)
        for of, of_y in [(BF16, BF16), (BF16, F32), (F16, F16)]:
            for n in (1, 512):
                case(n, weight, of, of_y)
    for tiles in TILES[4]:
        case(tiles.tokens, empty_weight(576, 960, 32, F32), F32, F32)
    bias = torch.empty(6144, dtype=BF16)
    for n in (1, 512):
        case(n, empty_weight(4096, 6144, 128, F16), BF16, BF16, bias)


def case(n: int, weight: Int4Weight, of: torch.dtype, of_y: torch.dtype, bias: torch.Tensor | None = None) -> None:
    x, y = torch.empty(n, weight.inputs, dtype=of), torch.empty(n, weight.outputs, dtype=of_y)
    int4_matmul(y, x, weight, bias, torch.empty(workspace_shape(n, weight.outputs, weight.inputs)))


def empty_weight(inputs: int, outputs: int, group: int, of_scale: torch.dtype) -> Int4Weight:
    groups = -(-inputs // group) if group else 1
    codes = torch.empty(-(-inputs // 64), outputs, 32, dtype=torch.uint8)
    return Int4Weight(codes, torch.empty(groups, outputs, 2, dtype=of_scale), inputs, group)
