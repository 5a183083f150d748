"""Attention of rows with one new token each: their keys are split among programs, whose parts a second kernel joins.

The workspace, f32: sums [rows, heads, splits, head_dim], then largest scores [rows, heads, splits], then weights.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.attention.online import attend
from lorad.kernels.attention.prefill import require_rows
from lorad.kernels.attention.tiles import DECODE, tiles_for
from lorad.kernels.launch import launch
from lorad.kernels.pages import Pages
from lorad.kernels.require import require


def decode_workspace(rows: int, heads: int, head_dim: int, splits: int) -> int:
    """Floats that `attention_decode` needs."""
    return rows * heads * splits * (head_dim + 2)


def attention_decode(
    out: Tensor,  # T [n, heads · head_dim]
    qkv: Tensor,  # T [n, (heads + 2 · kv_heads) · head_dim], T f32, f16 or bf16; of it q
    pages: Pages,  # K and V of the new tokens are in them
    layer: int,
    rows_count: Tensor,  # i32 [1]: rows that are real
    row_line: Tensor,  # i32 [rows]
    row_start: Tensor,  # i32 [rows]: tokens in pages before this step
    row_offset: Tensor,  # i32 [rows + 1]: where its new token is in qkv
    scale: float,
    window: int | None,  # keys that a query sees at most, its own included
    splits: int,  # programs that share a row's keys
    workspace: Tensor,  # f32 [`decode_workspace` or more]
) -> None:
    """Writes the tokens of the first `rows_count` rows, nothing else.

    What is multiplied is T if pages hold it too, else f32; sums are f32. A row's bits depend on its own line and on
    `splits`, not on other rows. Raises ValueError if shapes or types differ from those, a window is empty, or there are
    no splits.
    """
    elements = pages.elements()
    heads, head_dim = pages.query_heads(qkv), pages.head_dim
    rows = len(row_line)
    require("out", out, (len(qkv), heads * head_dim), qkv.dtype)
    require("rows_count", rows_count, (1,), torch.int32)
    require("workspace", workspace, (None,), torch.float32)
    require_rows(rows, row_line, row_start, row_offset, window)
    if splits < 1:
        raise ValueError(f"{splits} splits")
    if len(workspace) < decode_workspace(rows, heads, head_dim, splits):
        raise ValueError(f"a workspace of {len(workspace)} floats for {rows} rows in {splits} splits")
    widen = qkv.dtype != elements.dtype
    tiles = tiles_for(DECODE, head_dim, 32 if widen else 8 * qkv.dtype.itemsize)
    shared = heads // pages.kv_heads
    group = min(shared, tiles.rows)
    block_dim = max(16, triton.next_power_of_2(head_dim))
    launch(
        _attention_part,
        (rows, pages.kv_heads * triton.cdiv(shared, group), splits),
        workspace,
        qkv,
        elements,
        pages.table,
        rows_count,
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
        BLOCK_ROWS=tiles.rows,
        BLOCK_DIM=block_dim,
        BLOCK_KEYS=tiles.keys,
        WIDEN=widen,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    launch(
        _join,
        (rows, heads),
        out,
        workspace,
        rows_count,
        row_offset,
        splits,
        HEAD_DIM=head_dim,
        BLOCK_SPLITS=triton.next_power_of_2(splits),
        BLOCK_DIM=block_dim,
        num_warps=tiles.warps,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _attention_part(
    workspace: tl.tensor,
    qkv: tl.tensor,  # [n, KV_HEADS · (SHARED + 2) · HEAD_DIM]
    pages: tl.tensor,  # [pages, page_elements]
    table: tl.tensor,  # i32 [lines, columns]
    rows_count: tl.tensor,  # i32 [1]
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
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    row, split, splits = tl.program_id(0), tl.program_id(2), tl.num_programs(2)
    if row >= tl.load(rows_count):
        return
    groups: tl.constexpr = (SHARED + GROUP - 1) // GROUP
    kv_head = tl.program_id(1) // groups
    lane = tl.arange(0, BLOCK_ROWS)
    member = tl.program_id(1) % groups * GROUP + lane
    head = kv_head * SHARED + member
    dim = tl.arange(0, BLOCK_DIM)
    valid = (lane < GROUP) & (member < SHARED)
    inside = valid[:, None] & (dim < HEAD_DIM)[None, :]
    token = tl.load(row_offset + row).to(tl.int64)
    q_place = token * (KV_HEADS * (SHARED + 2) * HEAD_DIM) + head[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(qkv + q_place, mask=inside, other=0)
    if WIDEN:
        q = q.to(tl.float32)

    position = tl.load(row_start + row)
    lowest = 0
    if window is not None:
        lowest = tl.maximum(position - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    each = tl.cdiv(tl.cdiv(position + 1 - lowest, BLOCK_KEYS), splits) * BLOCK_KEYS
    begin = lowest + split * each
    head_begin = pages + layer_begin + kv_head * (PAGE_TOKENS * HEAD_DIM)
    most, weights, sums = attend(
        q,
        position + lane * 0,
        begin,
        tl.minimum(begin + each, position + 1),
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
    part = (row.to(tl.int64) * (KV_HEADS * SHARED) + head) * splits + split
    parts = tl.num_programs(0).to(tl.int64) * (KV_HEADS * SHARED) * splits
    tl.store(workspace + part[:, None] * HEAD_DIM + dim[None, :], sums, mask=inside)
    tl.store(workspace + parts * HEAD_DIM + part, most, mask=valid)
    tl.store(workspace + parts * (HEAD_DIM + 1) + part, weights, mask=valid)


@triton.jit  # type: ignore[untyped-decorator]
def _join(
    out: tl.tensor,  # [n, heads · HEAD_DIM]
    workspace: tl.tensor,
    rows_count: tl.tensor,  # i32 [1]
    row_offset: tl.tensor,  # i32 [rows + 1]
    splits: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
) -> None:
    row, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if row >= tl.load(rows_count):
        return
    split = tl.arange(0, BLOCK_SPLITS)
    dim = tl.arange(0, BLOCK_DIM)
    part = (row.to(tl.int64) * heads + head) * splits + split
    parts = tl.num_programs(0).to(tl.int64) * heads * splits
    inside = (split < splits)[:, None] & (dim < HEAD_DIM)[None, :]
    most = tl.load(workspace + parts * HEAD_DIM + part, mask=split < splits, other=float("-inf"))
    share = tl.exp2(most - tl.max(most, 0))
    weights = tl.load(workspace + parts * (HEAD_DIM + 1) + part, mask=split < splits, other=0)
    sums = tl.load(workspace + part[:, None] * HEAD_DIM + dim[None, :], mask=inside, other=0)
    joined = tl.sum(sums * share[:, None], 0) / tl.sum(weights * share, 0)
    token = tl.load(row_offset + row).to(tl.int64)
    tl.store(out + (token * heads + head) * HEAD_DIM + dim, joined.to(out.dtype.element_ty), mask=dim < HEAD_DIM)
