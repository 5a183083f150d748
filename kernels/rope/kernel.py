"""The rotation of `ref.py` in place, with the norm of each head before it, and K and V into their pages after it.

A program takes some heads of a token; q, k and v lie side by side, so their heads are numbered through.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.pages import Pages
from lorad.kernels.require import require
from lorad.kernels.rope.tiles import TILES


class HeadNorms(NamedTuple):
    """RMS norms of each head of q and k."""

    q: Tensor
    """f32 [head_dim]."""
    k: Tensor
    """f32 [head_dim]."""
    eps: float


def rope_write(
    qkv: Tensor,  # T [n, (heads + 2 · kv_heads) · head_dim], T f32, f16 or bf16
    cos: Tensor,  # f32 [positions, head_dim / 2]
    sin: Tensor,  # f32 [positions, head_dim / 2]
    position: Tensor,  # i32 [n]
    line: Tensor,  # i32 [n]
    count: Tensor,  # i32 [1]: tokens that are real
    pages: Pages,
    layer: int,
    norms: HeadNorms | None = None,
) -> None:
    """Rotates q and k of the first `count` tokens in place, and writes k and v to their places in `pages`.

    What goes to pages is rounded once, from f32. Other tokens are left as they are. Positions are below the tables'
    length and the line's; several tokens never share a place. Raises ValueError if shapes or types differ from those.
    """
    elements = pages.elements()
    heads = pages.query_heads(qkv)
    n, half = len(qkv), pages.head_dim // 2
    if pages.head_dim % 2:
        raise ValueError(f"heads of {pages.head_dim} have no halves")
    require("cos", cos, (None, half), torch.float32)
    require("sin", sin, (len(cos), half), torch.float32)
    require("position", position, (n,), torch.int32)
    require("line", line, (n,), torch.int32)
    require("count", count, (1,), torch.int32)
    if norms is not None:
        require("norm of q", norms.q, (pages.head_dim,), torch.float32)
        require("norm of k", norms.k, (pages.head_dim,), torch.float32)
    block = min(TILES.heads, triton.next_power_of_2(heads + 2 * pages.kv_heads))
    launch(
        _rope_write,
        (n, triton.cdiv(heads + 2 * pages.kv_heads, block)),
        qkv,
        cos,
        sin,
        position,
        line,
        count,
        None if norms is None else norms.q,
        None if norms is None else norms.k,
        0.0 if norms is None else norms.eps,
        elements,
        pages.table,
        pages.table.shape[1],
        elements.shape[1],
        pages.layer_begin(layer),
        HEADS=heads,
        KV_HEADS=pages.kv_heads,
        HALF=half,
        PAGE_TOKENS=pages.page_tokens,
        BLOCK_HEADS=block,
        BLOCK_HALF=triton.next_power_of_2(half),
        num_warps=TILES.warps,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _rope_write(
    qkv: tl.tensor,  # [n, (HEADS + 2 · KV_HEADS) · 2 · HALF]
    cos: tl.tensor,  # f32 [positions, HALF]
    sin: tl.tensor,  # f32 [positions, HALF]
    position: tl.tensor,  # i32 [n]
    line: tl.tensor,  # i32 [n]
    count: tl.tensor,  # i32 [1]
    q_norm: tl.tensor,  # f32 [2 · HALF], or None: no norms
    k_norm: tl.tensor,  # f32 [2 · HALF]
    eps: tl.tensor,
    pages: tl.tensor,  # [pages, page_elements]
    table: tl.tensor,  # i32 [lines, columns]
    columns: tl.tensor,
    page_elements: tl.tensor,
    layer_begin: tl.tensor,  # where the layer's K begins in a page
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
) -> None:
    token = tl.program_id(0)
    if token >= tl.load(count):
        return
    head_first = tl.program_id(1) * BLOCK_HEADS
    head = (head_first + tl.arange(0, BLOCK_HEADS))[:, None]
    column = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < HEADS + 2 * KV_HEADS) & (column < HALF)
    rotates = (head < HEADS + KV_HEADS) & inside
    left = qkv + token.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + head * (2 * HALF) + column
    a = tl.load(left, mask=inside, other=0).to(tl.float32)
    b = tl.load(left + HALF, mask=inside, other=0).to(tl.float32)
    if q_norm is not None:
        inverse = tl.rsqrt(tl.sum(a * a + b * b, 1) / (2 * HALF) + eps)[:, None]
        weight = tl.where(head < HEADS, q_norm, k_norm) + column
        a = tl.where(rotates, a * inverse * tl.load(weight, mask=rotates, other=0), a)
        b = tl.where(rotates, b * inverse * tl.load(weight + HALF, mask=rotates, other=0), b)
    place = tl.load(position + token)
    angle = place.to(tl.int64) * HALF + column
    c = tl.load(cos + angle, mask=column < HALF, other=0)
    s = tl.load(sin + angle, mask=column < HALF, other=0)
    turned_a, turned_b = tl.where(rotates, a * c - b * s, a), tl.where(rotates, b * c + a * s, b)
    tl.store(left, turned_a.to(qkv.dtype.element_ty), mask=rotates)
    tl.store(left + HALF, turned_b.to(qkv.dtype.element_ty), mask=rotates)
    if head_first + BLOCK_HEADS > HEADS:
        page = tl.load(table + tl.load(line + token).to(tl.int64) * columns + place // PAGE_TOKENS).to(tl.int64)
        slot = place % PAGE_TOKENS
        # Blocks of K's heads, then those of V's, in qkv's order: K as [head_dim][token], V as [token][head_dim].
        step = tl.where(rotates, PAGE_TOKENS, 1)
        begin = (head - HEADS) * (PAGE_TOKENS * 2 * HALF) + tl.where(rotates, slot, slot * 2 * HALF)
        target = pages + page * page_elements + layer_begin + begin + column * step
        kept = inside & (head >= HEADS)
        tl.store(target, turned_a.to(pages.dtype.element_ty), mask=kept)
        tl.store(target + HALF * step, turned_b.to(pages.dtype.element_ty), mask=kept)
