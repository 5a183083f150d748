"""Definitions that stand in kernels' places, on the same buffers."""

from __future__ import annotations

from lorad.worker.gpu.operators import Operators


def definitions() -> Operators:
    """All of them."""
    from definitions.attention import attention, attention_decode
    from definitions.gate_mul import gate_mul
    from definitions.int4 import int4_matmul
    from definitions.lora import lora, lora_embed
    from definitions.matmul import matmul
    from definitions.rms_norm import add_rms_norm, rms_norm
    from definitions.rope import rope_write
    from definitions.sample import sample

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
