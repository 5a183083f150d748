"""Matrix products with a base weight, by the operator that its number type allows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
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


class Stacked:
    """Operators of several number types over one input, their outputs side by side."""

    def __init__(self, parts: Sequence[tuple[Linear, int]]) -> None:
        """`parts`: operators and their outputs."""
        self._parts = parts
        self.bytes = sum(part.bytes for part, _ in parts)

    def __call__(self, y: F32, x: F32) -> None:
        begin = 0
        for part, rows in self._parts:
            columns = y[:, begin : begin + rows]
            begin += rows
            if columns.flags.c_contiguous:  # a single token's
                part(columns, x)
                continue
            whole = np.empty(columns.shape, dtype=np.float32)
            part(whole, x)
            columns[:] = whole


class QuantisedEmbedding:
    """A block-quantised table; rows are widened as they are read."""

    def __init__(self, matrix: _core.QuantMatrix) -> None:
        self._matrix = matrix
        self.bytes = matrix.bytes

    def __call__(self, out: F32, ids: NDArray[np.int32]) -> None:
        self._matrix.dequantize_rows(out, ids)

    def as_linear(self) -> Linear:
        return Quantised(self._matrix)


def make_linear(parts: Sequence[RawTensor], *, dequantize: bool) -> Linear:
    """One operator for `parts` stacked along the output (q|k|v, gate|up).

    Neighbours of one quantised type are multiplied as they are, together. Files of mixed types are common: llama.cpp's
    Q4_K_M has v in Q6_K in half of the layers.
    """

    def operator(part: RawTensor) -> str:
        return part.kind if not dequantize and part.kind in _core.QUANT_KINDS else ""

    made: list[tuple[Linear, int]] = []
    for kind, alike in groupby(parts, operator):
        run = list(alike)
        linear = Quantised(_quant_matrix(run)) if kind else Dense(torch.cat([part.dequantize() for part in run]))
        made.append((linear, sum(part.rows for part in run)))
    return made[0][0] if len(made) == 1 else Stacked(made)


def make_embedding(table: RawTensor, *, dequantize: bool) -> Embedding:
    """The token embedding, quantised if it is in the file."""
    if not dequantize and table.kind in _core.QUANT_KINDS:
        return QuantisedEmbedding(_quant_matrix([table]))
    return DenseEmbedding(table.dequantize())


def _quant_matrix(parts: Sequence[RawTensor]) -> _core.QuantMatrix:
    # Blocks lie within a row, so matrices of one width are stacked by joining their bytes.
    data = np.concatenate([np.asarray(part.raw).reshape(-1) for part in parts])
    return _core.QuantMatrix(parts[0].kind, data, sum(part.rows for part in parts), parts[0].cols)
