"""Products with the base's weights on a device: torch's, or our own, whose order of sums the rows have no part in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lorad.models.weights import RawTensor
from lorad.worker.gpu.operators import Operator


class Linear(Protocol):
    """y [n, out] = x [n, in] Wᵀ + bias; x and y of the activations' type."""

    bytes: int

    def __call__(self, y: Tensor, x: Tensor) -> None: ...


class Dense:
    """By torch: cuBLAS chooses its tiles by the rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """`weight` [out, in], `bias` [out] or None, of the activations' type."""
        self.weight = weight
        self._transposed = weight.t()
        self._bias = bias
        self.bytes = weight.nbytes

    def __call__(self, y: Tensor, x: Tensor) -> None:
        if self._bias is None:
            torch.mm(x, self._transposed, out=y)
        else:
            torch.addmm(self._bias, x, self._transposed, out=y)


class Fixed:
    """By our own kernel: a row's bits don't depend on the rows beside it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, matmul: Operator) -> None:
        self.weight = weight
        self._bias = bias
        self._matmul = matmul
        self.bytes = weight.nbytes

    def __call__(self, y: Tensor, x: Tensor) -> None:
        self._matmul(y, x, self.weight, self._bias)


def stacked(parts: Sequence[RawTensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Matrices of one width as one [out, in]; each is widened or narrowed by itself."""
    return torch.cat([floats(part).to(device=device, dtype=dtype) for part in parts])


def floats(tensor: RawTensor) -> Tensor:
    """A tensor's values, in its own number type if it's one of floats."""
    return tensor.dense() if tensor.is_dense else tensor.dequantize()


def vector(values: np.ndarray, device: torch.device) -> Tensor:
    """f32 [n] on the device."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(device)
