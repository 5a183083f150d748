"""Matrix products with a base weight, by the operator that its number type and this machine's timings choose."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.lazy import torch
from lorad.models.elements import element_of
from lorad.models.forms import F32, FORMS, QUANT_FORMS, Linear, Own, Product
from lorad.models.operators import OWN, ROWS, Choice, Operators
from lorad.models.products import alike
from lorad.models.weights import RawTensor


class Embedding(Protocol):
    """out [n, hidden] = rows of the table."""

    bytes: int

    def __call__(self, out: F32, ids: NDArray[np.int32]) -> None: ...

    def as_linear(self) -> Linear:
        """The same table as the output head (tied embeddings)."""


class ByRows(Linear):
    """A weight in one form or two; the number of rows decides which is multiplied."""

    def __init__(self, forms: Mapping[str, Linear], choice: Choice) -> None:
        """`forms`: those of the choice, by name."""
        self._by_rows = [forms[name] for name in choice.names]

    def _form(self, rows: int) -> Linear:
        return self._by_rows[max(bisect_right(ROWS, rows) - 1, 0)]

    def __call__(self, y: F32, x: F32, delta: _core.Delta | None = None) -> None:
        self._form(len(x))(y, x, delta)

    def gated(self, out: F32, between: F32, x: F32, gate: str, delta: _core.Delta | None = None) -> None:
        self._form(len(x)).gated(out, between, x, gate, delta)


class Chosen(ByRows):
    """A weight of floats."""

    def __init__(self, weight: torch.Tensor, choice: Choice, own: Own | None = None) -> None:
        """`weight`: f32, f16 or bf16 [out, in]; `own`: lorad's form of it, if there is one already."""
        forms = {name: own if own and name == "own" else FORMS[name](weight) for name in sorted(choice.forms)}
        super().__init__(forms, choice)
        self.bytes = sum(form.bytes for form in forms.values())


class DenseEmbedding:
    """A table of floats as it's stored; rows are widened as they are read."""

    def __init__(self, table: torch.Tensor, choice: Choice) -> None:
        """`table`: f32, f16 or bf16 [vocab, hidden]; `choice`: for its product as the head."""
        self._own = Own(table)
        self._linear = Chosen(table, choice, self._own)
        self.bytes = self._linear.bytes + (0 if "own" in choice.forms else self._own.bytes)

    def __call__(self, out: F32, ids: NDArray[np.int32]) -> None:
        self._own.matrix.widen_rows(out, ids)

    def as_linear(self) -> Linear:
        return self._linear


class Quantised(ByRows):
    """A block-quantised weight, multiplied as it is: by integer dot products, or by tiles of bf16."""

    def __init__(self, matrix: _core.QuantMatrix, choice: Choice) -> None:
        super().__init__({name: QUANT_FORMS[name](matrix) for name in sorted(choice.forms)}, choice)
        self.bytes = matrix.bytes


class Stacked(Product):
    """Operators of several number types over one input, their outputs side by side."""

    def __init__(self, parts: Sequence[tuple[Linear, int]]) -> None:
        """`parts`: operators and their outputs."""
        self._parts = parts
        self.bytes = sum(part.bytes for part, _ in parts)

    def product(self, y: F32, x: F32) -> None:
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

    def __init__(self, matrix: _core.QuantMatrix, choice: Choice) -> None:
        """`choice`: for its product as the head."""
        self._matrix, self._choice = matrix, choice
        self.bytes = matrix.bytes

    def __call__(self, out: F32, ids: NDArray[np.int32]) -> None:
        self._matrix.dequantize_rows(out, ids)

    def as_linear(self) -> Linear:
        return Quantised(self._matrix, self._choice)


class Biased(Linear):
    """A product to which a bias is added."""

    def __init__(self, linear: Linear, bias: F32) -> None:
        """`bias`: f32 [out]."""
        self._linear, self._bias = linear, bias
        self.bytes = linear.bytes + bias.nbytes

    def __call__(self, y: F32, x: F32, delta: _core.Delta | None = None) -> None:
        self._linear(y, x, delta)
        np.add(y, self._bias, out=y)


def make_linear(
    parts: Sequence[RawTensor],
    biases: Sequence[RawTensor],
    operators: Operators,
    *,
    dequantize: bool,
    fine: bool = False,
) -> Linear:
    """One operator for `parts` stacked along the output (q|k|v, gate|up). `biases`: one for each part, or none. `fine`:
    see `_core.QuantMatrix`.

    Neighbours of one quantised type are multiplied as they are, together.
    """
    made: list[tuple[Linear, int]] = []
    for kind, run in alike(parts, dequantize=dequantize):
        linear = _quantised(run, operators, fine) if kind else _chosen(_floats(run), operators)
        made.append((linear, sum(part.rows for part in run)))
    product = made[0][0] if len(made) == 1 else Stacked(made)
    return Biased(product, np.concatenate([bias.values() for bias in biases])) if biases else product


def _chosen(weight: torch.Tensor, operators: Operators) -> Linear:
    return Chosen(weight, operators.choose(element_of(weight.dtype), *weight.shape))


def _quantised(parts: Sequence[RawTensor], operators: Operators, fine: bool) -> Linear:
    matrix = _quant_matrix(parts, fine)
    return Quantised(matrix, operators.choose(matrix.kind, matrix.rows, matrix.cols, fine=fine))


def make_embedding(table: RawTensor, operators: Operators, *, dequantize: bool, is_head: bool) -> Embedding:
    """The token embedding, quantised if it is in the file. `is_head`: it's multiplied too."""
    if not dequantize and table.kind in _core.QUANT_KINDS:
        choice = operators.choose(table.kind, table.rows, table.cols) if is_head else OWN
        return QuantisedEmbedding(_quant_matrix([table]), choice)
    floats = _floats([table])
    choice = operators.choose(element_of(floats.dtype), *floats.shape) if is_head else OWN
    return DenseEmbedding(floats, choice)


def _floats(parts: Sequence[RawTensor]) -> torch.Tensor:
    """Parts of one number type of floats as they are, others widened to f32: the values are the file's either way."""
    if len({part.kind for part in parts}) == 1 and parts[0].is_dense:
        return torch.cat([part.dense() for part in parts])
    return torch.cat([part.dequantize() for part in parts])


def _quant_matrix(parts: Sequence[RawTensor], fine: bool = False) -> _core.QuantMatrix:
    # Blocks lie within a row, so matrices of one width are stacked by joining their bytes.
    data = np.concatenate([np.asarray(part.raw).reshape(-1) for part in parts])
    return _core.QuantMatrix(parts[0].kind, data, sum(part.rows for part in parts), parts[0].cols, fine=fine)
