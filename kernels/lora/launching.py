"""What the host functions of the LoRA kernels share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

ELEMENT = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}

EVEN_PAGE_BYTES = 512
"""A page that holds 16 columns of a rank tile of 8 rows in f32: the layout cuts pieces at multiples of 16 then."""


def even(arena: Tensor, *widths: int) -> bool:
    """Whether all runs over such widths begin and end at multiples of 16 columns."""
    return arena.shape[1] >= EVEN_PAGE_BYTES and all(width % 16 == 0 for width in widths)


def three(numbers: Sequence[int]) -> tuple[int, ...]:
    """Filled up with zeros, for kernels that take up to three slices."""
    return (*numbers, *(0,) * (3 - len(numbers)))
