"""What the tests of products share: random operands with nothing beyond them to read or write, tolerances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

ROUNDING = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Of a number of that type, and for f32 of a sum."""

MARGIN = 64
"""Elements after a matrix that a kernel which overruns it meets."""


def normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=random)


def fenced(values: Tensor) -> Tensor:
    """A copy with NaN behind it."""
    memory = torch.full((values.numel() + MARGIN,), torch.nan, dtype=values.dtype)
    memory[: values.numel()] = values.flatten()
    return memory[: values.numel()].view(values.shape)


def unwritten(n: int, outputs: int, dtype: torch.dtype) -> Tensor:
    """NaN, with NaN behind it."""
    return fenced(torch.full((n, outputs), torch.nan, dtype=dtype))


def untouched_behind(values: Tensor) -> bool:
    """Whether what lies behind is still NaN."""
    behind = values.as_strided((MARGIN,), (1,), values.storage_offset() + values.numel())
    return bool(behind.isnan().all())


def close(got: Tensor, wanted: Tensor) -> None:
    """Within what got's type and sums in f32 explain."""
    size = float(wanted.abs().max())
    tolerance = ROUNDING[got.dtype]
    np.testing.assert_allclose(got.float().numpy(), wanted.numpy(), rtol=tolerance, atol=2e-5 * size)


def sum_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the interpreter's dots sum product by product, as the matrix instructions of a GPU sum each element of a tile
    alike. It asks a BLAS, whose order depends on the shape of the tile."""
    dot = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, total: Any, *rest: Any) -> Any:
        for k in range(a.data.shape[1]):
            column = TensorHandle(a.data[:, k : k + 1], a.dtype.scalar)
            total = dot(self, column, TensorHandle(b.data[k : k + 1], b.dtype.scalar), total, *rest)
        return total

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
