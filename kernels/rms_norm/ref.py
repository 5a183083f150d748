"""x · weight / sqrt(mean(x²) + eps) (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(
    x: Tensor,  # f32 [n, hidden]
    weight: Tensor,  # f32 [hidden]
    eps: float,
) -> Tensor:
    """Returns f32 [n, hidden]."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def add_rms_norm(
    residual: Tensor,  # f32 [n, hidden]
    x: Tensor,  # f32 [n, hidden]
    weight: Tensor,  # f32 [hidden]
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Returns (norm of the sum, the sum), f32 [n, hidden] each."""
    total = residual + x
    return rms_norm(total, weight, eps), total
