"""`Operators`: the kernels that a step is made of. All have the same signatures as their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Operator = Callable[..., None]
"""Writes its first argument; starts kernels by `lorad.kernels.launch` only."""


class Operators(NamedTuple):
    """One of each; tests put definitions in their place."""

    lora: Operator
    lora_embed: Operator
    rope_write: Operator
    attention: Operator
    attention_decode: Operator
    rms_norm: Operator
    add_rms_norm: Operator
    gate_mul: Operator
    matmul: Operator
    """Of fixed order, for `--deterministic`; torch's otherwise."""
    int4_matmul: Operator
    sample: Operator


def triton_operators() -> Operators:
    """The Triton kernels. Imports Triton."""
    from lorad.kernels.attention.kernel import attention, attention_decode
    from lorad.kernels.gate_mul.kernel import gate_mul
    from lorad.kernels.int4.kernel import int4_matmul
    from lorad.kernels.lora.kernel import lora, lora_embed
    from lorad.kernels.matmul.kernel import matmul
    from lorad.kernels.rms_norm.kernel import add_rms_norm, rms_norm
    from lorad.kernels.rope.kernel import rope_write
    from lorad.kernels.sample.kernel import sample

    return Operators(
        lora=lora,
        lora_embed=lora_embed,
        rope_write=rope_write,
        attention=attention,
        attention_decode=attention_decode,
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        gate_mul=gate_mul,
        matmul=matmul,
        int4_matmul=int4_matmul,
        sample=sample,
    )
