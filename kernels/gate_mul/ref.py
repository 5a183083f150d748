"""gate(z) · up (Shazeer 2020, arXiv:2002.05202): silu(z) = z / (1 + exp(-z)) (SwiGLU), or GELU in tanh form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn.functional import gelu, silu

GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu, "gelu_tanh": partial(gelu, approximate="tanh")}


def gate_mul(
    gate_up: Tensor,  # f32 [n, 2 · width]: z, then up
    gate: str,  # one of GATES
) -> Tensor:
    """Returns f32 [n, width]."""
    z, up = gate_up.chunk(2, dim=-1)
    return GATES[gate](z) * up
