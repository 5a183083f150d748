"""s = x Aᵀ of each tile, as partial sums over parts of the input."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.lora.launching import even, three
from lorad.kernels.lora.products import shrunk
from lorad.kernels.lora.spans import pick, span_at, tile_at
from lorad.kernels.lora.table import Table
from lorad.kernels.lora.tiles import split_of, tiles_for


def workspace_shape(tokens: int, inputs: int, slices: int, rank_max: int) -> tuple[int, int, int, int]:
    """Of what `shrink` writes and `expand` reads, f32."""
    return split_of(inputs).blocks, slices, tokens, rank_max


def shrink(
    partials: Tensor,  # f32 [splits, slices, n, rank_max], contiguous: `workspace_shape`
    x: Tensor,  # [n, in] f32, f16 or bf16; rows contiguous
    arena: Tensor,  # u8 [pages, page_bytes]
    table: Table,
    tiles: Tensor,  # i32 [tiles_max, 4] (slot, tag, first token, one past the last), 16 tokens at most
    count: Tensor,  # i32 [1]: how many tiles there are
    layer: int,
    modules: Sequence[int],
) -> None:
    """Writes partial sums for the tiles' tokens and their adapters' own ranks; all else stays as it was. One launch,
    a block for each tile, part of the input, and module. ValueError if `partials` has another shape."""
    tokens, inputs = x.shape
    rank_max = partials.shape[3]
    if tuple(partials.shape) != workspace_shape(tokens, inputs, len(modules), rank_max):
        raise ValueError(f"partials {tuple(partials.shape)} for x {tuple(x.shape)} and {len(modules)} modules")
    split, sizes = split_of(inputs), tiles_for(x.element_size(), rank_max, tokens)
    launch(
        _shrink, (len(tiles) * split.blocks, len(modules)), partials, x, x.stride(0), arena, table.tags, table.spans,
        table.runs, tiles, count, tokens, inputs, len(table.tags), table.spans.shape[1], layer * table.modules,
        *three(modules), rank_max, SPLITS=split.blocks, SPLIT=split.columns, RANKS=sizes.ranks, INPUTS=sizes.inputs,
        EVEN=even(arena, inputs), num_warps=sizes.warps, num_stages=sizes.stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "slots", "places", "layer_place", "module_0", "module_1", "module_2"])
def _shrink(
    partials,  # f32 [SPLITS, slices, tokens, rank_max]
    x,  # [tokens, inputs]
    x_stride,
    arena,  # u8
    tags,  # i32 [slots]
    spans,  # i32 [slots, places, 4]
    runs,  # i32 [runs, 4]
    tiles,  # i32 [tiles_max, 4]
    count,  # i32 [1]
    tokens,
    inputs,
    slots,
    places,
    layer_place,  # of the layer's first module
    module_0,
    module_1,
    module_2,
    rank_max,
    SPLITS: tl.constexpr,
    SPLIT: tl.constexpr,  # columns
    RANKS: tl.constexpr,
    INPUTS: tl.constexpr,
    EVEN: tl.constexpr,
):
    tile = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    slice_ = tl.program_id(1)
    if tile >= tl.load(count):
        return
    slot, first, end, right = tile_at(tiles, tags, slots, tile)
    if not right:
        return
    place = layer_place + pick(slice_, module_0, module_1, module_2)
    first_run, a_runs, _, _, _, kind, rank = span_at(spans, runs, slot, place, places)
    if rank > rank_max:  # `expand` tells
        return
    token = first + tl.arange(0, 16)
    live = token < end
    begin = split * SPLIT
    stop = tl.minimum(begin + SPLIT, inputs)
    slices = tl.num_programs(1)
    rows = partials + ((split * slices + slice_).to(tl.int64) * tokens + token.to(tl.int64)) * rank_max
    for rank_begin in range(0, rank, RANKS):
        s = shrunk(
            x, x_stride, token, live, arena, runs, first_run, a_runs, kind, rank_begin, begin, stop, RANKS, INPUTS, EVEN
        )  # fmt: skip
        ranks = rank_begin + tl.arange(0, RANKS)
        tl.store(rows[:, None] + ranks[None, :], s, mask=live[:, None] & (ranks < rank)[None, :])
