"""x Wᵀ + bias, W as dequantised and rounded to x's type, summed in f64."""

from __future__ import annotations

from torch import Tensor

from lorad.kernels.int4.pack import unpack
from lorad.kernels.int4.weight import Int4Weight
from lorad.kernels.matmul import ref


def int4_matmul(
    x: Tensor,  # [n, in]
    weight: Int4Weight,  # [out, in]
    bias: Tensor | None = None,  # [out]
) -> Tensor:
    """Returns f32 [n, out]."""
    return ref.matmul(x, unpack(weight).to(x.dtype), bias)
