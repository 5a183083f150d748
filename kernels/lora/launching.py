"""What the host functions of the LoRA kernels share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from lorad.kernels.lora.table import EVEN_PAGE_BYTES

ELEMENT = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def even(arena: Tensor, *widths: int) -> bool:
    """Whether all runs over such widths begin and end at multiples of 16 columns."""
    return arena.shape[1] >= EVEN_PAGE_BYTES and all(width % 16 == 0 for width in widths)


def three(numbers: Sequence[int]) -> tuple[int, ...]:
    """Filled up with zeros, for kernels that take up to three slices."""
    return (*numbers, *(0,) * (3 - len(numbers)))
