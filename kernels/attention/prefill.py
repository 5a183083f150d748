"""Attention of rows with any number of new tokens: a program takes a block of queries and heads that share K and V."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.attention.online import attend
from lorad.kernels.attention.tiles import BLOCK, PREFILL, tiles_for
from lorad.kernels.launch import launch
from lorad.kernels.pages import Pages
from lorad.kernels.require import require


def attention(
    out: Tensor,  # T [n, heads · head_dim]
    qkv: Tensor,  # T [n, (heads + 2 · kv_heads) · head_dim], T f32, f16 or bf16; of it q
    pages: Pages,  # K and V of the new tokens are in them
    layer: int,
    queries: Tensor,  # i32 [blocks, 2]: (row, first new token within the row) of each `BLOCK` new tokens of a row
    count: Tensor,  # i32 [1]: blocks that are real
    row_line: Tensor,  # i32 [rows]
    row_start: Tensor,  # i32 [rows]: tokens in pages before this step
    row_offset: Tensor,  # i32 [rows + 1]: where its new tokens begin in qkv
    scale: float,
    window: int | None = None,  # keys that a query sees at most, its own included
) -> None:
    """Writes the queries of the first `count` blocks, nothing else.

    What is multiplied is T if pages hold it too, else f32; sums are f32. A token's bits depend on its own line up to
    itself: not on how its prompt is cut into steps and blocks, nor on other rows. Raises ValueError if shapes or types
    differ from those, or a window is empty.
    """
    elements = pages.elements()
    heads, head_dim = pages.query_heads(qkv), pages.head_dim
    rows = len(row_line)
    require("out", out, (len(qkv), heads * head_dim), qkv.dtype)
    require("queries", queries, (None, 2), torch.int32)
    require("count", count, (1,), torch.int32)
    require_rows(rows, row_line, row_start, row_offset, window)
    widen = qkv.dtype != elements.dtype
    tiles = tiles_for(PREFILL, head_dim, 32 if widen else 8 * qkv.dtype.itemsize)
    shared = heads // pages.kv_heads
    group = min(shared, tiles.rows // BLOCK)
    launch(
        _attention,
        (len(queries), pages.kv_heads * triton.cdiv(shared, group)),
        out,
        qkv,
        elements,
        pages.table,
        queries,
        count,
        row_line,
        row_start,
        row_offset,
        pages.table.shape[1],
        elements.shape[1],
        pages.layer_begin(layer),
        scale * math.log2(math.e),
        window,
        KV_HEADS=pages.kv_heads,
        SHARED=shared,
        GROUP=group,
        HEAD_DIM=head_dim,
        PAGE_TOKENS=pages.page_tokens,
        BLOCK_TOKENS=BLOCK,
        BLOCK_ROWS=triton.next_power_of_2(BLOCK * group),
        BLOCK_DIM=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_KEYS=tiles.keys,
        WIDEN=widen,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )


def require_rows(rows: int, row_line: Tensor, row_start: Tensor, row_offset: Tensor, window: int | None) -> None:
    """What both kinds of attention ask of rows and window."""
    require("row_line", row_line, (rows,), torch.int32)
    require("row_start", row_start, (rows,), torch.int32)
    require("row_offset", row_offset, (rows + 1,), torch.int32)
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} keys")


@triton.jit  # type: ignore[untyped-decorator]
def _attention(
    out: tl.tensor,  # [n, KV_HEADS · SHARED · HEAD_DIM]
    qkv: tl.tensor,  # [n, KV_HEADS · (SHARED + 2) · HEAD_DIM]
    pages: tl.tensor,  # [pages, page_elements]
    table: tl.tensor,  # i32 [lines, columns]
    queries: tl.tensor,  # i32 [blocks, 2]
    count: tl.tensor,  # i32 [1]
    row_line: tl.tensor,  # i32 [rows]
    row_start: tl.tensor,  # i32 [rows]
    row_offset: tl.tensor,  # i32 [rows + 1]
    columns: tl.tensor,
    page_elements: tl.tensor,
    layer_begin: tl.tensor,
    steepness: tl.tensor,
    window: tl.tensor,
    KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr,  # heads of q for one of K and V
    GROUP: tl.constexpr,  # of them, those of a program
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    if block >= tl.load(count):
        return
    row = tl.load(queries + 2 * block)
    first = tl.load(queries + 2 * block + 1)
    start = tl.load(row_start + row)
    offset = tl.load(row_offset + row)
    stop = tl.minimum(first + BLOCK_TOKENS, tl.load(row_offset + row + 1) - offset)

    groups: tl.constexpr = (SHARED + GROUP - 1) // GROUP
    kv_head = tl.program_id(1) // groups
    lane = tl.arange(0, BLOCK_ROWS)
    token = first + lane // GROUP
    member = tl.program_id(1) % groups * GROUP + lane % GROUP
    dim = tl.arange(0, BLOCK_DIM)
    inside = ((token < stop) & (member < SHARED))[:, None] & (dim < HEAD_DIM)[None, :]
    place = (offset + token).to(tl.int64)
    within = (kv_head * SHARED + member) * HEAD_DIM
    q_place = (place * (KV_HEADS * (SHARED + 2) * HEAD_DIM) + within)[:, None] + dim[None, :]
    q = tl.load(qkv + q_place, mask=inside, other=0)
    if WIDEN:
        q = q.to(tl.float32)

    begin = 0
    if window is not None:  # the block with the first key that the first query sees
        begin = tl.maximum(start + first - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    head_begin = pages + layer_begin + kv_head * (PAGE_TOKENS * HEAD_DIM)
    _, weights, sums = attend(
        q,
        start + tl.minimum(token, stop - 1),
        begin,
        start + stop,
        head_begin,
        head_begin + KV_HEADS * PAGE_TOKENS * HEAD_DIM,
        page_elements,
        table + tl.load(row_line + row).to(tl.int64) * columns,
        steepness,
        window,
        HEAD_DIM,
        PAGE_TOKENS,
        BLOCK_DIM,
        BLOCK_KEYS,
        WIDEN,
    )
    out_place = (place * (KV_HEADS * SHARED * HEAD_DIM) + within)[:, None] + dim[None, :]
    tl.store(out + out_place, (sums / weights[:, None]).to(out.dtype.element_ty), mask=inside)
