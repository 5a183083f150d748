"""act(gate) · up (Shazeer 2020, arXiv:2002.05202): silu(z) = z / (1 + exp(-z)) (SwiGLU), or GELU in tanh form."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import gelu, silu


def silu_mul(
    gate_up: Tensor,  # f32 [n, 2 · width]: gate, then up
) -> Tensor:
    """Returns f32 [n, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up


def gelu_mul(
    gate_up: Tensor,  # f32 [n, 2 · width]: gate, then up
) -> Tensor:
    """Returns f32 [n, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu(gate, approximate="tanh") * up
