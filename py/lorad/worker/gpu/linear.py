"""Products with the base's weights on a device: torch's, or our own, whose order of sums the rows have no part in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lorad.kernels.int4.kernel import workspace_shape
from lorad.kernels.int4.pack import GGUF_KINDS, from_gguf
from lorad.kernels.int4.tiles import FEW
from lorad.kernels.int4.weight import HALF, UNIT, Int4Weight, stack
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


class FourBit:
    """By our own kernel, from four bits; a row's bits don't depend on the rows beside it either."""

    def __init__(self, weight: Int4Weight, bias: Tensor | None, matmul: Operator, space: Workspace) -> None:
        self.weight = weight
        self._bias = bias
        self._matmul = matmul
        self._space = space
        self.bytes = weight.bytes
        space.reserve(workspace_count(weight.outputs, weight.inputs))

    def __call__(self, y: Tensor, x: Tensor) -> None:
        self._matmul(y, x, self.weight, self._bias, self._space.tensor)


class Workspace:
    """Memory that one product after the other uses, as much as the one that wants most."""

    def __init__(self) -> None:
        self._count = 0
        self.tensor = torch.empty(0)
        """f32."""

    def reserve(self, count: int) -> None:
        """So many f32 will be wanted."""
        self._count = max(self._count, count)

    def take(self, device: torch.device) -> None:
        """When all are known, and before graphs learn where it is."""
        self.tensor = torch.empty(self._count, dtype=torch.float32, device=device)


def four_bit(parts: Sequence[RawTensor], device: torch.device) -> Int4Weight | None:
    """Matrices of one width as one, if all have four bits in the file."""
    if any(part.kind not in GGUF_KINDS for part in parts):
        return None
    return stack([from_gguf(part.kind, torch.from_numpy(np.array(part.raw)).to(device)) for part in parts])


def held_bytes(part: RawTensor, size: int, *, dequantize: bool) -> int:
    """Bytes that a matrix takes of the device at most; `size`: of an activation."""
    numbers = math.prod(part.shape)
    if dequantize or part.kind not in GGUF_KINDS:
        return numbers * size
    units = -(-part.cols // UNIT)
    return part.rows * units * HALF + part.rows * -(-part.cols // HALF) * 8


def workspace_count(outputs: int, inputs: int) -> int:
    """Numbers of f32 that a product with a matrix of four bits passes partial sums in."""
    return math.prod(workspace_shape(FEW, outputs, inputs))


def product_bytes(parts: Sequence[RawTensor], *, dequantize: bool) -> int:
    """Bytes of workspace that the product with matrices of one width takes."""
    if dequantize or any(part.kind not in GGUF_KINDS for part in parts):
        return 0
    return 4 * workspace_count(sum(part.rows for part in parts), parts[0].cols)


def stacked(parts: Sequence[RawTensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Matrices of one width as one [out, in]; each is widened or narrowed by itself."""
    return torch.cat([floats(part).to(device=device, dtype=dtype) for part in parts])


def floats(tensor: RawTensor) -> Tensor:
    """A tensor's values, in its own number type if it's one of floats."""
    return tensor.dense() if tensor.is_dense else tensor.dequantize()


def vector(values: np.ndarray, device: torch.device) -> Tensor:
    """f32 [n] on the device."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(device)
