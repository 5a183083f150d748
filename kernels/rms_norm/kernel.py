"""The norms of `ref.py`: a program takes a row, which it holds whole, and sums it once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.require import FLOATS, require
from lorad.kernels.rms_norm.tiles import WARPS


def rms_norm(
    out: Tensor,  # T [n, hidden]; may be x itself
    x: Tensor,  # T [n, hidden]
    weight: Tensor,  # T [hidden]
    eps: float,
) -> None:
    """out = the norm of x; each T f32, f16 or bf16 by itself; computed in f32.

    Raises ValueError if shapes or types differ from those, or rows are wider than 16384.
    """
    _start(out, None, x, weight, eps)


def add_rms_norm(
    out: Tensor,  # T [n, hidden]; may be x itself
    residual: Tensor,  # T [n, hidden]
    x: Tensor,  # T [n, hidden]
    weight: Tensor,  # T [hidden]
    eps: float,
) -> None:
    """residual += x, then out = the norm of residual as it's stored. Otherwise as `rms_norm`."""
    require("residual", residual, tuple(x.shape), *FLOATS)
    _start(out, residual, x, weight, eps)


def _start(out: Tensor, residual: Tensor | None, x: Tensor, weight: Tensor, eps: float) -> None:
    require("x", x, (None, None), *FLOATS)
    n, width = x.shape
    require("out", out, (n, width), *FLOATS)
    require("weight", weight, (width,), *FLOATS)
    warps = next((warps for most, warps in WARPS.items() if width <= most), None)
    if warps is None:
        raise ValueError(f"rows of {width} are wider than {max(WARPS)}")
    launch(
        _rms_norm,
        (n,),
        out,
        residual,
        x,
        weight,
        width,
        eps,
        BLOCK=triton.next_power_of_2(width),
        num_warps=warps,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm(
    out: tl.tensor,  # [n, width]
    residual: tl.tensor,  # [n, width], or None: nothing is added
    x: tl.tensor,  # [n, width]
    weight: tl.tensor,  # [width]
    width: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row + column, mask=inside, other=0).to(tl.float32)
    if residual is not None:
        sums = residual + row + column
        total = (tl.load(sums, mask=inside, other=0).to(tl.float32) + value).to(residual.dtype.element_ty)
        tl.store(sums, total, mask=inside)
        value = total.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    normed = value * inverse * tl.load(weight + column, mask=inside, other=0).to(tl.float32)
    tl.store(out + row + column, normed.to(out.dtype.element_ty), mask=inside)
