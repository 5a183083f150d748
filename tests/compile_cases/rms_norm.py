"""Norms of real models' widths, with weights as files have them and as f32."""

from __future__ import annotations

import torch

from lorad.kernels.rms_norm.kernel import add_rms_norm, rms_norm
from model_shapes import SHAPES


def cases() -> None:
    for hidden in [shape.hidden for shape in SHAPES] + [16384]:
        case(hidden, torch.bfloat16, torch.float32)
    case(4096, torch.bfloat16, torch.bfloat16)
    case(4096, torch.float16, torch.float32)
    case(576, torch.float32, torch.float32)


def case(hidden: int, of: torch.dtype, of_weight: torch.dtype) -> None:
    out, residual, x = torch.empty(3, 64, hidden, dtype=of)
    weight = torch.empty(hidden, dtype=of_weight)
    rms_norm(out, x, weight, 1e-5)
    add_rms_norm(out, residual, x, weight, 1e-5)
