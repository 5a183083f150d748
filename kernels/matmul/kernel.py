"""x Wᵀ + bias: each element of y by one chain of sums along the input, whatever the batch.

Tiles are transposed, W xᵀ: outputs are the side of the matrix instruction that has a least length, tokens the one that
may be short. So few rows and many are summed by the same instruction in the same order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.matmul.tiles import BAND, INPUTS, tiles_for
from lorad.kernels.require import FLOATS, require


def matmul(
    y: Tensor,  # T or f32 [n, out]
    x: Tensor,  # T [n, in]
    weight: Tensor,  # T [out, in]
    bias: Tensor | None,  # f32, f16 or bf16 [out]
) -> None:
    """y = x Wᵀ + bias, T f32, f16 or bf16; summed in f32, rounded once.

    A row's bits follow from the row and the weight alone. One launch. Raises ValueError if shapes or types differ from
    those.
    """
    require("x", x, (None, None), *FLOATS)
    require("weight", weight, (None, x.shape[1]), x.dtype)
    (n, inputs), outputs = x.shape, len(weight)
    require("y", y, (n, outputs), x.dtype, torch.float32)
    if bias is not None:
        require("bias", bias, (outputs,), *FLOATS)
    tiles = tiles_for(n, x.element_size())
    launch(
        _matmul,
        (triton.cdiv(n, tiles.tokens) * triton.cdiv(outputs, tiles.outputs),),
        y,
        x,
        weight,
        bias,
        n,
        inputs,
        outputs,
        TOKENS=tiles.tokens,
        OUTPUTS=tiles.outputs,
        INPUTS=INPUTS[x.element_size()],
        BAND=BAND,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )


@triton.jit  # type: ignore[untyped-decorator]
def tile_of(
    program: tl.tensor,
    token_tiles: tl.tensor,
    output_tiles: tl.tensor,
    BAND: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """(token tile, output tile): BAND output tiles with all tokens, then the next; outputs change first."""
    band = program // (BAND * token_tiles)
    within = program % (BAND * token_tiles)
    wide = tl.minimum(output_tiles - band * BAND, BAND)
    return within // wide, band * BAND + within % wide


@triton.jit  # type: ignore[untyped-decorator]
def store_tile(
    y: tl.tensor,  # [n, outputs]
    total: tl.tensor,  # f32 [OUTPUTS, TOKENS]
    bias: tl.tensor,  # [outputs], or None
    token: tl.tensor,  # i32 [TOKENS]
    output: tl.tensor,  # i32 [OUTPUTS]
    n: tl.tensor,
    outputs: tl.tensor,
) -> None:
    """Adds the bias, and rounds to y's type."""
    inside = output < outputs
    if bias is not None:
        total += tl.load(bias + output, mask=inside, other=0).to(tl.float32)[:, None]
    at = y + token.to(tl.int64)[:, None] * outputs + output[None, :]
    mask = (token < n)[:, None] & inside[None, :]
    tl.store(at, tl.trans(total).to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n"])  # type: ignore[untyped-decorator]
def _matmul(
    y: tl.tensor,  # [n, outputs]
    x: tl.tensor,  # [n, inputs]
    weight: tl.tensor,  # [outputs, inputs]
    bias: tl.tensor,  # [outputs], or None
    n: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BAND: tl.constexpr,
) -> None:
    token_tile, output_tile = tile_of(tl.program_id(0), tl.cdiv(n, TOKENS), tl.cdiv(outputs, OUTPUTS), BAND)
    token = token_tile * TOKENS + tl.arange(0, TOKENS)
    output = output_tile * OUTPUTS + tl.arange(0, OUTPUTS)
    column = tl.arange(0, INPUTS)
    x_at = x + token.to(tl.int64)[:, None] * inputs + column[None, :]
    weight_at = weight + output.to(tl.int64)[:, None] * inputs + column[None, :]
    live, inside = (token < n)[:, None], (output < outputs)[:, None]
    total = tl.zeros([OUTPUTS, TOKENS], dtype=tl.float32)
    for begin in range(0, inputs, INPUTS):
        real = (column < inputs - begin)[None, :]
        w = tl.load(weight_at + begin, mask=inside & real, other=0)
        v = tl.load(x_at + begin, mask=live & real, other=0)
        total = tl.dot(w, tl.trans(v), total, input_precision="ieee")
    store_tile(y, total, bias, token, output, n, outputs)
