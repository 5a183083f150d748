"""Gates of real models' widths."""

from __future__ import annotations

import torch

from lorad.kernels.gate_mul.kernel import gate_mul
from lorad.kernels.gate_mul.ref import GATES
from model_shapes import LLAMA_3_8B


def cases() -> None:
    for of in (torch.bfloat16, torch.float16, torch.float32):
        for gate in GATES:
            out = torch.empty(64, LLAMA_3_8B.intermediate, dtype=of)
            gate_mul(out, torch.empty(64, 2 * LLAMA_3_8B.intermediate, dtype=of), gate)
