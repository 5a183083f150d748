"""`shrink` and `expand` as one launch, for few tokens and narrow inputs."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.lora.launching import even, three
from lorad.kernels.lora.products import expanded, finish, poison, shrunk
from lorad.kernels.lora.spans import pick, span_at, tile_at
from lorad.kernels.lora.table import Table
from lorad.kernels.lora.tiles import split_of, tiles_for


def fused(
    y: Tensor,  # [n, width] x's type or f32; rows contiguous
    x: Tensor,  # [n, in] f32, f16 or bf16; rows contiguous
    arena: Tensor,  # u8 [pages, page_bytes]
    table: Table,
    tiles: Tensor,  # i32 [tiles_max, 4] (slot, tag, first token, one past the last), 16 tokens at most
    count: Tensor,  # i32 [1]: how many tiles there are
    layer: int,
    modules: Sequence[int],
    columns: Sequence[int],  # where each module's columns of y begin
    widths: Sequence[int],  # how many they are
    rank_max: int,  # chooses block sizes, as it does for two launches
) -> None:
    """What `shrink` and `expand` do, by the same sums in the same order. Each block of columns shrinks for itself: when
    that pays is said at `tiles.fused_pays`."""
    split, sizes = split_of(x.shape[1]), tiles_for(x.element_size(), rank_max, len(x))
    launch(
        _fused, (len(tiles), triton.cdiv(max(widths), sizes.outputs), len(modules)), y, y.stride(0), x, x.stride(0),
        arena, table.tags, table.spans, table.scales, table.runs, tiles, count, x.shape[1], len(table.tags),
        table.spans.shape[1], layer * table.modules, *three(modules), *three(columns), *three(widths), rank_max,
        SPLITS=split.blocks, SPLIT=split.columns, RANKS=sizes.ranks, INPUTS=sizes.inputs, OUTPUTS=sizes.outputs,
        EVEN_IN=even(arena, x.shape[1]), EVEN_OUT=even(arena, *widths), num_warps=sizes.warps, num_stages=sizes.stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slots", "places", "layer_place", "module_0", "module_1", "module_2", "rank_max"])
def _fused(
    y,  # [tokens, …]
    y_stride,
    x,  # [tokens, inputs]
    x_stride,
    arena,  # u8
    tags,  # i32 [slots]
    spans,  # i32 [slots, places, 4]
    scales,  # f32 [slots, places]
    runs,  # i32 [runs, 4]
    tiles,  # i32 [tiles_max, 4]
    count,  # i32 [1]
    inputs,
    slots,
    places,
    layer_place,  # of the layer's first module
    module_0,
    module_1,
    module_2,
    column_0,
    column_1,
    column_2,
    width_0,
    width_1,
    width_2,
    rank_max,
    SPLITS: tl.constexpr,
    SPLIT: tl.constexpr,  # columns
    RANKS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EVEN_IN: tl.constexpr,
    EVEN_OUT: tl.constexpr,
):
    tile = tl.program_id(0)
    slice_ = tl.program_id(2)
    if tile >= tl.load(count):
        return
    width = pick(slice_, width_0, width_1, width_2)
    if tl.program_id(1) * OUTPUTS >= width:
        return
    slot, first, end, right = tile_at(tiles, tags, slots, tile)
    token = first + tl.arange(0, 16)
    live = token < end
    columns = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = columns < width
    mask = live[:, None] & inside[None, :]
    y_at = y + token.to(tl.int64)[:, None] * y_stride + (pick(slice_, column_0, column_1, column_2) + columns)[None, :]
    if not right:
        poison(y_at, mask)
        return
    place = layer_place + pick(slice_, module_0, module_1, module_2)
    first_run, a_runs, b_runs, gains, biases, kind, rank = span_at(spans, runs, slot, place, places)
    if rank > rank_max:
        poison(y_at, mask)
        return
    if a_runs + gains + biases == 0:
        return
    scale = tl.load(scales + slot.to(tl.int64) * places + place)
    acc = tl.zeros([16, OUTPUTS], dtype=tl.float32)
    for rank_begin in range(0, rank, RANKS):
        s = tl.zeros([16, RANKS], dtype=tl.float32)
        for split in range(SPLITS):
            begin = split * SPLIT
            stop = tl.minimum(begin + SPLIT, inputs)
            s += shrunk(
                x, x_stride, token, live, arena, runs, first_run, a_runs, kind, rank_begin, begin, stop, RANKS, INPUTS,
                EVEN_IN,
            )  # fmt: skip
        acc = expanded(
            s * scale, acc, arena, runs, first_run + a_runs, b_runs, kind, rank_begin, columns, inside, RANKS, OUTPUTS,
            EVEN_OUT, x.dtype.element_ty,
        )  # fmt: skip
    gain_run = first_run + a_runs + b_runs
    finish(y_at, mask, acc, arena, runs, gain_run, gains, biases, columns, inside, OUTPUTS, EVEN_OUT)
