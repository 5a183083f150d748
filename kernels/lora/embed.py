"""LoRA on an embedding: the product with one-hot rows, so x Aᵀ is a token's column of A."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.lora.launching import even
from lorad.kernels.lora.products import expanded, finish, poison, weights_at
from lorad.kernels.lora.spans import run_at, span_at, tile_at
from lorad.kernels.lora.table import Table
from lorad.kernels.lora.tiles import EMBEDDING


def lora_embed(
    hidden: Tensor,  # [n, width] f32, f16 or bf16; rows contiguous
    ids: Tensor,  # i32 [n], each below the module's inputs
    arena: Tensor,  # u8 [pages, page_bytes]
    table: Table,
    tiles: Tensor,  # i32 [tiles_max, 4] (slot, tag, first token, one past the last), 16 tokens at most
    count: Tensor,  # i32 [1]: how many tiles there are
    layer: int,
    module: int,
) -> None:
    """hidden += scale · A[:, id]ᵀ B for the tiles' tokens, A being [rank, vocab]; then the module's vectors. NaN where
    the slot holds another adapter than the tile's. One launch, a block for each tile and columns."""
    width, sizes = hidden.shape[1], EMBEDDING[hidden.element_size()]
    launch(
        _embed, (len(tiles), triton.cdiv(width, sizes.outputs)), hidden, hidden.stride(0), ids, arena, table.tags,
        table.spans, table.scales, table.runs, tiles, count, width, len(table.tags), table.spans.shape[1],
        layer * table.modules + module, RANKS=sizes.ranks, OUTPUTS=sizes.outputs, EVEN=even(arena, width),
        num_warps=sizes.warps, num_stages=sizes.stages,
    )  # fmt: skip


@triton.jit
def _columns_of_a(
    arena,
    runs,
    first_run,
    a_runs,
    kind,
    rank_begin,
    ids,  # i32 [16]
    live,  # bool [16]
    RANKS: tl.constexpr,
):
    """f32 [16, RANKS]: each token's column."""
    s = tl.zeros([16, RANKS], dtype=tl.float32)
    ranks = rank_begin + tl.arange(0, RANKS)
    for run in range(first_run, first_run + a_runs):
        address, row, rows, column, length = run_at(runs, run, False)
        if (row < rank_begin + RANKS) & (row + rows > rank_begin):
            mine = (ranks >= row) & (ranks < row + rows)
            here = live & (ids >= column) & (ids < column + length)
            mask = here[:, None] & mine[None, :]
            offsets = (ids - column)[:, None] + ((ranks - row) * length)[None, :]
            s = tl.where(mask, weights_at(arena, address, offsets, mask, kind, None), s)
    return s


@triton.jit(do_not_specialize=["slots", "places", "place"])
def _embed(
    hidden,  # [n, width]
    hidden_stride,
    ids,  # i32 [n]
    arena,  # u8
    tags,  # i32 [slots]
    spans,  # i32 [slots, places, 4]
    scales,  # f32 [slots, places]
    runs,  # i32 [runs, 4]
    tiles,  # i32 [tiles_max, 4]
    count,  # i32 [1]
    width,
    slots,
    places,
    place,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EVEN: tl.constexpr,
):
    tile = tl.program_id(0)
    if tile >= tl.load(count):
        return
    slot, first, end, right = tile_at(tiles, tags, slots, tile)
    token = first + tl.arange(0, 16)
    live = token < end
    columns = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = columns < width
    mask = live[:, None] & inside[None, :]
    at = hidden + token.to(tl.int64)[:, None] * hidden_stride + columns[None, :]
    if not right:
        poison(at, mask)
        return
    first_run, a_runs, b_runs, gains, biases, kind, rank = span_at(spans, runs, slot, place, places)
    if a_runs + gains + biases == 0:
        return
    scale = tl.load(scales + slot.to(tl.int64) * places + place)
    chosen = tl.load(ids + token, mask=live, other=0)
    acc = tl.zeros([16, OUTPUTS], dtype=tl.float32)
    for rank_begin in range(0, rank, RANKS):
        s = _columns_of_a(arena, runs, first_run, a_runs, kind, rank_begin, chosen, live, RANKS)
        acc = expanded(
            s * scale, acc, arena, runs, first_run + a_runs, b_runs, kind, rank_begin, columns, inside, RANKS, OUTPUTS,
            EVEN, hidden.dtype.element_ty,
        )  # fmt: skip
    gain_run = first_run + a_runs + b_runs
    finish(at, mask, acc, arena, runs, gain_run, gains, biases, columns, inside, OUTPUTS, EVEN)
