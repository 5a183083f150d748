"""x Wᵀ with W as it is dequantised and x rounded to 8 bits in blocks of 32: scale = max|x| / 127, ties to even.

`fine`: what that leaves is rounded too, and added.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32


def round_activations(
    x: Tensor,  # f32 [n, cols]
) -> Tensor:
    """Returns f32 [n, cols]: what the integer product sees, scale · q."""
    blocks = x.view(len(x), x.shape[1] // BLOCK, BLOCK)
    most = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(most > 0, 127 / most, 0)
    return ((blocks * inverse).round() * (most / 127)).view_as(x)


def qmatmul(
    x: Tensor,  # f32 [n, cols]
    weight: Tensor,  # f32 [rows, cols], dequantised
    *,
    fine: bool = False,
) -> Tensor:
    """Returns f32 [n, rows]."""
    rounded = round_activations(x).double()
    if fine:
        rounded += round_activations(x - rounded.float()).double()
    return (rounded @ weight.double().T).float()


def rounding_bound(
    x: Tensor,  # f32 [n, cols]
    weight: Tensor,  # f32 [rows, cols]
) -> Tensor:
    """Returns f32 [n, rows]: how far `qmatmul` may be from the exact product: half a step for each weight."""
    step = x.view(len(x), x.shape[1] // BLOCK, BLOCK).abs().amax(-1) / 127
    return step @ weight.view(len(weight), weight.shape[1] // BLOCK, BLOCK).abs().sum(-1).T / 2
