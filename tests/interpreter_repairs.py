"""What Triton's interpreter does otherwise than a GPU, put right. Imported after `interpreted`.

It keeps bfloat16 as bits: casts to it cut instead of rounding, dots multiply the bits as numbers. Its dots are BLAS',
which rounds rows at a tile's edge otherwise than those inside on some CPUs; on a GPU all rows of a tile are alike. That
of 3.6 can't take a loop's bounds from memory, as newer NumPy makes no numbers of arrays with one element.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_dot, _cast, _patch_tensor = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl, interpreter._patch_lang_tensor


def _widened(value: Any) -> Any:
    if value.dtype.scalar != tl.bfloat16:
        return value
    return TensorHandle((value.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
    a, b = _widened(a), _widened(b)
    if {a.data.dtype, b.data.dtype} <= {np.dtype(np.float16), np.dtype(np.float32)}:
        # Sums in f64, rounded once: they don't depend on a row's place in the tile.
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
        return TensorHandle(product.astype(d.data.dtype) + d.data, d.dtype.scalar)
    return _dot(self, a, b, d, *rest)


def _cast_impl(self: Any, value: Any, to: Any) -> Any:
    if to.scalar == tl.bfloat16 and value.dtype.scalar == tl.float32:
        rounded = torch.from_numpy(np.ascontiguousarray(value.data)).bfloat16()
        return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)
    if to.scalar == tl.float32 and value.dtype.scalar == tl.bfloat16:
        return _widened(value)
    return _cast(self, value, to)


def _patch_lang_tensor(tensor: Any, *scope: Any) -> None:
    _patch_tensor(tensor, *scope)
    tensor.__index__ = lambda self: self.handle.data.item()  # the scope that ends removes it by its name


InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl = _create_dot, _cast_impl
interpreter._patch_lang_tensor = _patch_lang_tensor
