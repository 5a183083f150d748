"""Matrix products with a base weight, by the operator that its number type allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lorad import _core
from lorad.models.weights import RawTensor

F32 = NDArray[np.float32]


class Linear(Protocol):
    """y [n, out] = x [n, in] @ W.T, both f32 and contiguous."""

    bytes: int

    def __call__(self, y: F32, x: F32) -> None: ...


class Embedding(Protocol):
    """out [n, hidden] = rows of the table."""

    bytes: int

    def __call__(self, out: F32, ids: NDArray[np.int32]) -> None: ...

    def as_linear(self) -> Linear:
        """The same table as the output head (tied embeddings)."""


class Dense:
    """A weight held as f32, multiplied by torch: the reference path."""

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight`: f32 [out, in]."""
        self.weight = weight.contiguous()
        self._transposed = self.weight.t()
        self.bytes = self.weight.numel() * 4

    def __call__(self, y: F32, x: F32) -> None:
        torch.mm(torch.from_numpy(x), self._transposed, out=torch.from_numpy(y))


class DenseEmbedding:
    """An f32 table."""

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight`: f32 [vocab, hidden]."""
        self._linear = Dense(weight)
        self._table = self._linear.weight.numpy()
        self.bytes = self._linear.bytes

    def __call__(self, out: F32, ids: NDArray[np.int32]) -> None:
        _core.embed(out, self._table, ids)

    def as_linear(self) -> Linear:
        return self._linear


class Quantised:
    """A block-quantised weight, multiplied as it is by lorad-cpu's integer dot products."""

    def __init__(self, matrix: _core.QuantMatrix) -> None:
        self._matrix = matrix
        self.bytes = matrix.bytes

    def __call__(self, y: F32, x: F32) -> None:
        self._matrix.matmul(y, x)


class QuantisedEmbedding:
    """A block-quantised table; rows are widened as they are read."""

    def __init__(self, matrix: _core.QuantMatrix) -> None:
        self._matrix = matrix
        self.bytes = matrix.bytes

    def __call__(self, out: F32, ids: NDArray[np.int32]) -> None:
        self._matrix.dequantize_rows(out, ids)

    def as_linear(self) -> Linear:
        return Quantised(self._matrix)


class Biased:
    """A product to which a bias is added."""

    def __init__(self, linear: Linear, bias: F32) -> None:
        """`bias`: f32 [out]."""
        self._linear, self._bias = linear, bias
        self.bytes = linear.bytes + bias.nbytes

    def __call__(self, y: F32, x: F32) -> None:
        self._linear(y, x)
        np.add(y, self._bias, out=y)


def make_linear(parts: Sequence[RawTensor], biases: Sequence[RawTensor] = (), *, dequantize: bool) -> Linear:
    """One operator for `parts` stacked along the output (q|k|v, gate|up): quantised if all parts are, and alike.

    `biases`: one for each part, or none.
    """
    kinds = {part.kind for part in parts}
    linear: Linear
    if not dequantize and len(kinds) == 1 and kinds <= _core.QUANT_KINDS:
        linear = Quantised(_quant_matrix(parts))
    else:
        linear = Dense(torch.cat([part.dequantize() for part in parts]))
    if not biases:
        return linear
    return Biased(linear, torch.cat([bias.dequantize() for bias in biases]).numpy())


def make_embedding(table: RawTensor, *, dequantize: bool) -> Embedding:
    """The token embedding, quantised if it is in the file."""
    if not dequantize and table.kind in _core.QUANT_KINDS:
        return QuantisedEmbedding(_quant_matrix([table]))
    return DenseEmbedding(table.dequantize())


def _quant_matrix(parts: Sequence[RawTensor]) -> _core.QuantMatrix:
    # Blocks lie within a row, so matrices of one width are stacked by joining their bytes.
    data = np.concatenate([np.asarray(part.raw).reshape(-1) for part in parts])
    return _core.QuantMatrix(parts[0].kind, data, sum(part.rows for part in parts), parts[0].cols)
