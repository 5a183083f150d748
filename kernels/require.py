"""What host functions ask of their tensors before a kernel trusts them."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Types of activations."""


def require(name: str, tensor: Tensor, shape: tuple[int | None, ...], *dtypes: torch.dtype) -> None:
    """Raises ValueError unless `tensor` is contiguous, of that shape (None: any length) and of one of those types."""
    if len(tensor.shape) != len(shape) or any(
        want not in (None, have) for have, want in zip(tensor.shape, shape, strict=True)
    ):
        raise ValueError(f"{name} is {list(tensor.shape)}, not {['any' if n is None else n for n in shape]}")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} is of {tensor.dtype}, not of {' or '.join(map(str, dtypes))}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} isn't contiguous")
