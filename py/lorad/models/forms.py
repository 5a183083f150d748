"""Forms in which a weight is multiplied: lorad's own and torch's for floats, integers and tiles for quantised ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.lazy import torch
from lorad.models.elements import element_of

F32 = NDArray[np.float32]


class Linear(ABC):
    """y [n, out] = x [n, in] @ W.T, both f32 and contiguous; then adapters add to y."""

    bytes: int

    @abstractmethod
    def __call__(self, y: F32, x: F32, delta: _core.Delta | None = None) -> None: ...

    def gated(self, out: F32, between: F32, x: F32, gate: str, delta: _core.Delta | None = None) -> None:
        """out [n, width] = gate(y[:, :width]) · y[:, width:]; `between` is room for y."""
        self(between, x, delta)
        _core.gate_mul(out, between, gate)


class Product(Linear):
    """A product that is finished before adapters add to it."""

    @abstractmethod
    def product(self, y: F32, x: F32) -> None:
        """y = x @ W.T."""

    def __call__(self, y: F32, x: F32, delta: _core.Delta | None = None) -> None:
        self.product(y, x)
        if delta is not None:
            _core.lora(y, x, delta)


class Own(Product):
    """As stored, rows interleaved; lorad-cpu widens it in registers. A row of y doesn't depend on the others."""

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight`: f32, f16 or bf16 [out, in]."""
        data = weight.contiguous().view(torch.uint8).numpy().reshape(-1)
        self.matrix = _core.DenseMatrix(element_of(weight.dtype), data, *weight.shape)
        self.bytes = self.matrix.bytes

    def product(self, y: F32, x: F32) -> None:
        self.matrix.matmul(y, x)


class TorchF32(Product):
    """Widened to f32."""

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight`: f32, f16 or bf16 [out, in]."""
        self.weight = weight.to(torch.float32).contiguous()
        self._transposed = self.weight.t()
        self.bytes = self.weight.numel() * 4

    def product(self, y: F32, x: F32) -> None:
        torch.mm(torch.from_numpy(x), self._transposed, out=torch.from_numpy(y))


class TorchBf16(Product):
    """bf16 beside activations that are rounded to bf16, summed in f32: for CPUs that have instructions for it."""

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight`: bf16 [out, in]."""
        self.weight = weight.contiguous()
        self.bytes = self.weight.numel() * 2

    def product(self, y: F32, x: F32) -> None:
        torch.from_numpy(y).copy_(torch.nn.functional.linear(torch.from_numpy(x).to(torch.bfloat16), self.weight))


FORMS: Mapping[str, Callable[[torch.Tensor], Linear]] = {"own": Own, "torch_f32": TorchF32, "torch_bf16": TorchBf16}


class Quant(Linear):
    """A quantised weight; what comes after its product is done while that is near."""

    tiles: bool

    def __init__(self, matrix: _core.QuantMatrix) -> None:
        self._matrix = matrix
        self.bytes = matrix.bytes

    def __call__(self, y: F32, x: F32, delta: _core.Delta | None = None) -> None:
        self._matrix.matmul(y, x, tiles=self.tiles, delta=delta)

    def gated(self, out: F32, between: F32, x: F32, gate: str, delta: _core.Delta | None = None) -> None:
        if self._matrix.rows % _core.GATED_ROWS:
            return super().gated(out, between, x, gate, delta)
        self._matrix.matmul(out, x, tiles=self.tiles, delta=delta, gate=gate)


class Integers(Quant):
    """As it is beside activations of 8 bits. A row of y doesn't depend on the others."""

    tiles = False


class Tiles(Quant):
    """Widened panel by panel and rounded to bf16 as activations are, on CPUs with such tiles."""

    tiles = True


QUANT_FORMS: Mapping[str, Callable[[_core.QuantMatrix], Linear]] = {"own": Integers, "tiles": Tiles}


def has_tiles() -> bool:
    """Does lorad-cpu multiply tiles of bf16 here?"""
    return _core.cpu_features()["level"] == "amx"


def torch_has_bf16() -> bool:
    """Has this CPU bf16 dot products?"""
    features = _core.cpu_features()
    return bool(features.get("avx512_bf16"))
