"""x Wᵀ + bias, summed in f64."""

from __future__ import annotations

from torch import Tensor


def matmul(
    x: Tensor,  # [n, in]
    weight: Tensor,  # [out, in]
    bias: Tensor | None = None,  # [out]
) -> Tensor:
    """Returns f32 [n, out]."""
    y = x.double() @ weight.double().T
    return (y if bias is None else y + bias.double()).float()
