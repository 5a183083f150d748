"""x Wᵀ + bias with W dequantised in registers, after the manner of `matmul/kernel.py`.

The input is cut in parts, by the weight's shape alone. Of few rows each part is a program's, and another kernel adds
them up; of many, a program sums part after part. Both add the same numbers in the same order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.int4.tiles import FEW, SUMMED, parts_of, tiles_for
from lorad.kernels.int4.weight import HALF, UNIT, Int4Weight
from lorad.kernels.launch import launch
from lorad.kernels.matmul.kernel import store_tile, tile_of
from lorad.kernels.matmul.tiles import BAND
from lorad.kernels.require import FLOATS, require


def workspace_shape(
    n: int,
    outputs: int,
    inputs: int,
) -> tuple[int, int, int]:
    """Of what `int4_matmul` needs for so many rows; nothing where rows are many or the weight is small."""
    number = parts_of(outputs, inputs).number
    return (number, n, outputs) if n <= FEW and number > 1 else (0, n, outputs)


def int4_matmul(
    y: Tensor,  # T or f32 [n, out]
    x: Tensor,  # T [n, in]
    weight: Int4Weight,  # [out, in]
    bias: Tensor | None,  # f32, f16 or bf16 [out]
    workspace: Tensor,  # f32, at least as many elements as `workspace_shape` says
) -> None:
    """y = x Wᵀ + bias, T f32, f16 or bf16; W rounded to T, summed in f32, rounded once.

    A row's bits follow from the row and the weight alone. One launch, or two for few rows. Raises ValueError if
    shapes or types differ from those.
    """
    inputs, outputs = weight.inputs, weight.outputs
    require("x", x, (None, inputs), *FLOATS)
    n = len(x)
    require("y", y, (n, outputs), x.dtype, torch.float32)
    require("codes", weight.codes, (triton.cdiv(inputs, UNIT), outputs, HALF), torch.uint8)
    groups = triton.cdiv(inputs, weight.group) if weight.group else 1
    require("scales", weight.scales, (groups, outputs, 2), torch.float16, torch.float32)
    if weight.group % HALF:
        raise ValueError(f"groups of {weight.group} columns; a multiple of {HALF} is needed")
    if bias is not None:
        require("bias", bias, (outputs,), *FLOATS)
    parts, tiles = parts_of(outputs, inputs), tiles_for(n, x.element_size())
    shared = workspace_shape(n, outputs, inputs)[0] > 0
    if shared and (workspace.numel() < parts.number * n * outputs or workspace.dtype != torch.float32):
        raise ValueError(f"workspace {list(workspace.shape)} of {workspace.dtype} for {parts.number} parts of y")
    launch(
        _int4_matmul,
        (triton.cdiv(n, tiles.tokens) * triton.cdiv(outputs, tiles.outputs), parts.number if shared else 1),
        workspace if shared else y,
        x,
        weight.codes,
        weight.scales.view(torch.int32 if weight.scales.dtype == torch.float16 else torch.int64),
        None if shared else bias,
        n,
        inputs,
        outputs,
        groups,
        1 if shared else parts.number,
        parts.units,
        TOKENS=tiles.tokens,
        OUTPUTS=tiles.outputs,
        GROUP=weight.group,
        BAND=BAND,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    if shared:
        grid = (triton.cdiv(outputs, SUMMED), n)
        launch(_add_parts, grid, y, workspace, bias, n, outputs, PARTS=parts.number, BLOCK=SUMMED, num_warps=4)


@triton.jit  # type: ignore[untyped-decorator]
def _weights(
    codes: tl.tensor,  # u8 [OUTPUTS, 32], each 0 to 15
    scales: tl.tensor,  # [OUTPUTS], scale and offset in a word
    TYPE: tl.constexpr,
) -> tl.tensor:
    """TYPE [OUTPUTS, 32]: half a unit, dequantised."""
    if scales.dtype == tl.int32:
        scale = scales.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        offset = (scales >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        scale = scales.to(tl.int32).to(tl.float32, bitcast=True)
        offset = (scales >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return (codes.to(tl.float32) * scale[:, None] - offset[:, None]).to(TYPE)


@triton.jit(do_not_specialize=["n", "units"])  # type: ignore[untyped-decorator]
def _int4_matmul(
    y: tl.tensor,  # [programs that share a sum, n, outputs]
    x: tl.tensor,  # [n, inputs]
    codes: tl.tensor,  # u8 [units, outputs, 32]
    scales: tl.tensor,  # i32 or i64 [groups, outputs], scale and offset in a word
    bias: tl.tensor,  # [outputs], or None
    n: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    groups: tl.tensor,
    parts: tl.tensor,  # of this program
    units: tl.tensor,  # of a part
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    BAND: tl.constexpr,
) -> None:
    token_tile, output_tile = tile_of(tl.program_id(0), tl.cdiv(n, TOKENS), tl.cdiv(outputs, OUTPUTS), BAND)
    first = tl.program_id(1)
    token = token_tile * TOKENS + tl.arange(0, TOKENS)
    output = output_tile * OUTPUTS + tl.arange(0, OUTPUTS)
    byte = tl.arange(0, 32)
    codes_at = codes + output.to(tl.int64)[:, None] * 32 + byte[None, :]
    scales_at = scales + output
    x_at = x + token.to(tl.int64)[:, None] * inputs + byte[None, :]
    live, inside = (token < n)[:, None], output < outputs
    total = tl.zeros([OUTPUTS, TOKENS], dtype=tl.float32)
    for part in range(first, first + parts):
        chain = tl.zeros([OUTPUTS, TOKENS], dtype=tl.float32)
        for unit in range(part * units, tl.minimum(part * units + units, tl.cdiv(inputs, 64))):
            column = unit * 64
            both = tl.load(codes_at + tl.cast(unit, tl.int64) * outputs * 32, mask=inside[:, None], other=0)
            low = scales_at
            if GROUP > 0:
                low += tl.cast(column // GROUP, tl.int64) * outputs
            s = tl.load(low, mask=inside, other=0)
            w = _weights(both & 15, s, x.dtype.element_ty)
            v = tl.load(x_at + column, mask=live & (byte < inputs - column)[None, :], other=0)
            chain = tl.dot(w, tl.trans(v), chain, input_precision="ieee")
            if GROUP % 64 != 0:
                # Past the last column there is no group: x is 0 there.
                high = tl.minimum((column + 32) // GROUP, groups - 1)
                s = tl.load(scales_at + tl.cast(high, tl.int64) * outputs, mask=inside, other=0)
            w = _weights(both >> 4, s, x.dtype.element_ty)
            v = tl.load(x_at + column + 32, mask=live & (byte < inputs - column - 32)[None, :], other=0)
            chain = tl.dot(w, tl.trans(v), chain, input_precision="ieee")
        total += chain
    store_tile(y + first.to(tl.int64) * n * outputs, total, bias, token, output, n, outputs)


@triton.jit(do_not_specialize=["n"])  # type: ignore[untyped-decorator]
def _add_parts(
    y: tl.tensor,  # [n, outputs]
    workspace: tl.tensor,  # f32 [PARTS, n, outputs]
    bias: tl.tensor,  # [outputs], or None
    n: tl.tensor,
    outputs: tl.tensor,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = output < outputs
    at = tl.program_id(1).to(tl.int64) * outputs + output
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(workspace + part * tl.cast(n, tl.int64) * outputs + at, mask=inside, other=0)
    if bias is not None:
        total += tl.load(bias + output, mask=inside, other=0).to(tl.float32)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)
