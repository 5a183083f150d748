"""The kernels of `ref.py` over pages: any step's, and one for steps that only decode."""

from __future__ import annotations

from lorad.kernels.attention.decode import attention_decode, decode_workspace
from lorad.kernels.attention.prefill import attention
from lorad.kernels.attention.tiles import BLOCK

__all__ = ["BLOCK", "attention", "attention_decode", "decode_workspace"]
