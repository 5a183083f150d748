"""What the LoRA kernels share: x Aᵀ over some inputs, s B for some outputs, and how that meets y.

A block of rank rows is the same rows whichever pages they lie in, and sums go in the order of columns and of blocks: so
results depend neither on where an adapter lies nor on what it's computed beside.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from lorad.kernels.lora.spans import run_at


@triton.jit
def product(a, b, acc):
    """acc + a b, summed in f32: of 16-bit numbers as they are where both have the same type."""
    if a.dtype == b.dtype and a.dtype != tl.float32:
        return tl.dot(a, b, acc)
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")


@triton.jit
def kind_of(TYPE: tl.constexpr):
    """Its number in a span."""
    if TYPE == tl.float32:  # noqa: SIM300
        return 0
    elif TYPE == tl.float16:  # noqa: SIM300
        return 1
    else:
        return 2


@triton.jit
def weights_at(
    arena,  # u8
    address,  # i64, bytes
    offsets,  # i32, elements from there
    mask,
    kind,
    TYPE: tl.constexpr,  # the number type that they have, or None: that of `kind`, widened to f32
):
    """Weights, 0 where masked out."""
    if TYPE is None:
        if kind == 0:
            wide = tl.load((arena + address).to(tl.pointer_type(tl.float32)) + offsets, mask=mask, other=0.0)
        elif kind == 1:
            half = tl.load((arena + address).to(tl.pointer_type(tl.float16)) + offsets, mask=mask, other=0.0)
            wide = half.to(tl.float32)
        else:
            brief = tl.load((arena + address).to(tl.pointer_type(tl.bfloat16)) + offsets, mask=mask, other=0.0)
            wide = brief.to(tl.float32)
        return wide
    else:
        return tl.load((arena + address).to(tl.pointer_type(TYPE)) + offsets, mask=mask, other=0.0)


@triton.jit
def shrunk_as(
    x,
    x_stride,
    tokens,  # i32 [16]
    live,  # bool [16]
    arena,
    runs,
    first_run,
    a_runs,
    kind,
    rank_begin,
    begin,
    stop,
    RANKS: tl.constexpr,
    INPUTS: tl.constexpr,
    EVEN: tl.constexpr,
    TYPE: tl.constexpr,  # as in `weights_at`
):
    """f32 [16, RANKS]: see `shrunk`."""
    acc = tl.zeros([16, RANKS], dtype=tl.float32)
    ranks = rank_begin + tl.arange(0, RANKS)
    x_rows = x + tokens.to(tl.int64)[:, None] * x_stride
    for run in range(first_run, first_run + a_runs):
        address, row, rows, column, length = run_at(runs, run, EVEN)
        start = tl.maximum(begin, column // INPUTS * INPUTS)
        end = tl.minimum(stop, column + length)
        if (row < rank_begin + RANKS) & (row + rows > rank_begin) & (start < end):
            mine = (ranks >= row) & (ranks < row + rows)
            offsets = (ranks - row) * length - column
            for at in range(start, end, INPUTS):
                columns = at + tl.arange(0, INPUTS)
                inside = (columns >= column) & (columns < end)
                values = tl.load(x_rows + columns[None, :], mask=live[:, None] & inside[None, :], other=0.0)
                a = weights_at(
                    arena,
                    address,
                    offsets[:, None] + columns[None, :],
                    mine[:, None] & inside[None, :],
                    kind,
                    TYPE,
                )
                acc = product(values, tl.trans(a), acc)
    return acc


@triton.jit
def shrunk(
    x,  # [n, inputs]
    x_stride,
    tokens,  # i32 [16]
    live,  # bool [16]
    arena,  # u8
    runs,  # i32 [runs, 4]
    first_run,
    a_runs,
    kind,
    rank_begin,
    begin,  # a multiple of INPUTS
    stop,
    RANKS: tl.constexpr,
    INPUTS: tl.constexpr,
    EVEN: tl.constexpr,
):
    """f32 [16, RANKS]: x Aᵀ over inputs `begin` to `stop`, for RANKS rank rows; 0 where there is no token or row."""
    if kind == kind_of(x.dtype.element_ty):
        acc = shrunk_as(
            x, x_stride, tokens, live, arena, runs, first_run, a_runs, kind, rank_begin, begin, stop, RANKS, INPUTS,
            EVEN, x.dtype.element_ty,
        )  # fmt: skip
    else:
        acc = shrunk_as(
            x, x_stride, tokens, live, arena, runs, first_run, a_runs, kind, rank_begin, begin, stop, RANKS, INPUTS,
            EVEN, None,
        )  # fmt: skip
    return acc


@triton.jit
def block_of_b(
    arena,
    runs,
    first_run,
    b_runs,
    kind,
    rank_begin,
    columns,  # i32 [OUTPUTS], neighbours
    inside,  # bool [OUTPUTS]
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EVEN: tl.constexpr,
    TYPE: tl.constexpr,  # as in `weights_at`
):
    """[RANKS, OUTPUTS] of B, put together from the runs in which it lies; 0 where it has nothing."""
    if TYPE is None:
        b = tl.zeros([RANKS, OUTPUTS], dtype=tl.float32)
    else:
        b = tl.zeros([RANKS, OUTPUTS], dtype=TYPE)
    ranks = rank_begin + tl.arange(0, RANKS)
    first_column = tl.min(columns, axis=0)
    for run in range(first_run, first_run + b_runs):
        address, row, rows, column, length = run_at(runs, run, EVEN)
        has_rows = (row < rank_begin + RANKS) & (row + rows > rank_begin)
        if has_rows & (column < first_column + OUTPUTS) & (column + length > first_column):
            mine = (ranks >= row) & (ranks < row + rows)
            here = inside & (columns >= column) & (columns < column + length)
            mask = mine[:, None] & here[None, :]
            offsets = ((ranks - row) * length - column)[:, None] + columns[None, :]
            b = tl.where(mask, weights_at(arena, address, offsets, mask, kind, TYPE), b)
    return b


@triton.jit
def expanded(
    s,  # f32 [16, RANKS]
    acc,  # f32 [16, OUTPUTS]
    arena,  # u8
    runs,  # i32 [runs, 4]
    first_run,
    b_runs,
    kind,
    rank_begin,
    columns,  # i32 [OUTPUTS], neighbours
    inside,  # bool [OUTPUTS]
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EVEN: tl.constexpr,
    TYPE: tl.constexpr,  # of x
):
    """acc + s B for RANKS rank rows.

    Where B is multiplied in 16 bits, s is two halves of such numbers, over a power of two for each token: f32's
    precision but for some bits, and float16's range isn't left.
    """
    if kind == kind_of(TYPE):
        b = block_of_b(
            arena, runs, first_run, b_runs, kind, rank_begin, columns, inside, RANKS, OUTPUTS, EVEN, TYPE
        )  # fmt: skip
        if TYPE == tl.float32:  # noqa: SIM300
            acc = product(s, b, acc)
        else:
            # The exponent's bits of the row's largest, kept where both it and its inverse are normal numbers.
            bits = tl.max(tl.abs(s), axis=1).to(tl.int32, bitcast=True) & 0x7F800000
            bits = tl.minimum(tl.maximum(bits, 1 << 23), 253 << 23)
            power = bits.to(tl.float32, bitcast=True)
            even = s * ((254 << 23) - bits).to(tl.float32, bitcast=True)[:, None]
            high = even.to(TYPE)
            low = (even - high.to(tl.float32)).to(TYPE)
            both = product(high, b, product(low, b, tl.zeros([16, OUTPUTS], dtype=tl.float32)))
            acc += power[:, None] * both
    else:
        wide = block_of_b(
            arena, runs, first_run, b_runs, kind, rank_begin, columns, inside, RANKS, OUTPUTS, EVEN, None
        )  # fmt: skip
        acc = product(s, wide, acc)
    return acc


@triton.jit
def vector_at(
    arena,
    runs,
    first_run,
    count,
    columns,  # i32 [OUTPUTS], neighbours
    inside,  # bool [OUTPUTS]
    OUTPUTS: tl.constexpr,
    EVEN: tl.constexpr,
):
    """f32 [OUTPUTS] of a gain or a bias."""
    vector = tl.zeros([OUTPUTS], dtype=tl.float32)
    for run in range(first_run, first_run + count):
        address, _, _, column, length = run_at(runs, run, EVEN)
        here = inside & (columns >= column) & (columns < column + length)
        vector = tl.where(here, weights_at(arena, address, columns - column, here, 0, tl.float32), vector)
    return vector


@triton.jit
def finish(
    y_at,  # pointers [16, OUTPUTS]
    mask,  # bool [16, OUTPUTS]
    acc,  # f32 [16, OUTPUTS], what the adapter adds
    arena,
    runs,
    gain_run,
    gains,
    biases,
    columns,
    inside,
    OUTPUTS: tl.constexpr,
    EVEN: tl.constexpr,
):
    """y = gain · (y + acc) + bias, rounded once."""
    total = tl.load(y_at, mask=mask, other=0.0).to(tl.float32) + acc
    if gains > 0:
        total *= vector_at(arena, runs, gain_run, gains, columns, inside, OUTPUTS, EVEN)[None, :]
    if biases > 0:
        total += vector_at(arena, runs, gain_run + gains, biases, columns, inside, OUTPUTS, EVEN)[None, :]
    tl.store(y_at, total.to(y_at.dtype.element_ty), mask=mask)


@triton.jit
def poison(
    y_at,  # pointers [16, OUTPUTS]
    mask,  # bool [16, OUTPUTS]
):
    """Makes them NaN, so that a row without its weights fails."""
    tl.store(y_at, tl.full(y_at.shape, float("nan"), dtype=tl.float32).to(y_at.dtype.element_ty), mask=mask)
