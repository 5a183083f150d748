"""lorad's names of the number types of floats, and torch's."""

from __future__ import annotations

from typing import Literal

from lorad.lazy import torch

Element = Literal["f32", "f16", "bf16"]
"""By the name that page layouts use."""


def element_of(dtype: torch.dtype) -> Element:
    """lorad's name of a number type."""
    names: dict[torch.dtype, Element] = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
    return names[dtype]


def dtype_of(element: str) -> torch.dtype:
    """torch's number type of one of these names."""
    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[element]
