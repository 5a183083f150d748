"""y += scale · s B of each tile, s being the sum of what `shrink` left; then the module's vectors."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.lora.launching import ELEMENT, even, three
from lorad.kernels.lora.products import expanded, finish, poison
from lorad.kernels.lora.spans import pick, span_at, tile_at
from lorad.kernels.lora.table import Table
from lorad.kernels.lora.tiles import tiles_for


def expand(
    y: Tensor,  # [n, width] x's type or f32; rows contiguous
    x: Tensor,  # [n, in]: only its type and shape
    partials: Tensor,  # f32 [splits, slices, n, rank_max], contiguous: from `shrink`
    arena: Tensor,  # u8 [pages, page_bytes]
    table: Table,
    tiles: Tensor,  # i32 [tiles_max, 4] (slot, tag, first token, one past the last), 16 tokens at most
    count: Tensor,  # i32 [1]: how many tiles there are
    layer: int,
    modules: Sequence[int],
    columns: Sequence[int],  # where each module's columns of y begin
    widths: Sequence[int],  # how many they are
) -> None:
    """Adds to the tiles' tokens in the modules' columns; NaN where the slot holds another adapter than the tile's, or
    one of a higher rank than `partials` has room for. One launch, a block for each tile, columns, and module."""
    rank_max = partials.shape[3]
    sizes = tiles_for(x.element_size(), rank_max, len(x))
    launch(
        _expand, (len(tiles), triton.cdiv(max(widths), sizes.outputs), len(modules)), y, y.stride(0), partials, arena,
        table.tags, table.spans, table.scales, table.runs, tiles, count, len(x), len(table.tags), table.spans.shape[1],
        layer * table.modules, *three(modules), *three(columns), *three(widths), rank_max, TYPE=ELEMENT[x.dtype],
        SPLITS=partials.shape[0], RANKS=sizes.ranks, OUTPUTS=sizes.outputs, EVEN=even(arena, *widths),
        num_warps=sizes.warps, num_stages=sizes.stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "slots", "places", "layer_place", "module_0", "module_1", "module_2"])
def _expand(
    y,  # [tokens, …]
    y_stride,
    partials,  # f32 [SPLITS, slices, tokens, rank_max]
    arena,  # u8
    tags,  # i32 [slots]
    spans,  # i32 [slots, places, 4]
    scales,  # f32 [slots, places]
    runs,  # i32 [runs, 4]
    tiles,  # i32 [tiles_max, 4]
    count,  # i32 [1]
    tokens,
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
    TYPE: tl.constexpr,  # of x
    SPLITS: tl.constexpr,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EVEN: tl.constexpr,
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
    slices = tl.num_programs(2)
    rows = partials + (slice_.to(tl.int64) * tokens + token.to(tl.int64)) * rank_max
    split_stride = slices.to(tl.int64) * tokens * rank_max
    acc = tl.zeros([16, OUTPUTS], dtype=tl.float32)
    for rank_begin in range(0, rank, RANKS):
        ranks = rank_begin + tl.arange(0, RANKS)
        s_mask = live[:, None] & (ranks < rank)[None, :]
        s = tl.zeros([16, RANKS], dtype=tl.float32)
        for split in range(SPLITS):
            s += tl.load(rows[:, None] + ranks[None, :] + split * split_stride, mask=s_mask, other=0.0)
        acc = expanded(
            s * scale, acc, arena, runs, first_run + a_runs, b_runs, kind, rank_begin, columns, inside, RANKS, OUTPUTS,
            EVEN, TYPE,
        )  # fmt: skip
    gain_run = first_run + a_runs + b_runs
    finish(y_at, mask, acc, arena, runs, gain_run, gains, biases, columns, inside, OUTPUTS, EVEN)
