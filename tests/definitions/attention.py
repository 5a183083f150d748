"""Attention over pages by its definition, on the kernels' buffers. Workspaces stay as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from lorad.kernels.attention import ref
from lorad.kernels.attention.kernel import BLOCK
from lorad.kernels.launch import launch
from lorad.kernels.pages import Pages
from lorad.kernels.rope.ref import read_pages


def attention(
    out: Tensor,
    qkv: Tensor,
    pages: Pages,
    layer: int,
    queries: Tensor,
    count: Tensor,
    row_line: Tensor,
    row_start: Tensor,
    row_offset: Tensor,
    scale: float,
    window: int | None = None,
) -> None:
    rows = (row_line, row_start, row_offset)
    launch(_attention, None, out, qkv, pages, layer, queries, count, *rows, scale, window)


def attention_decode(
    out: Tensor,
    qkv: Tensor,
    pages: Pages,
    layer: int,
    rows_count: Tensor,
    row_line: Tensor,
    row_start: Tensor,
    row_offset: Tensor,
    scale: float,
    window: int | None,
    splits: int,
    workspace: Tensor,
) -> None:
    rows = (row_line, row_start, row_offset)
    launch(_decode, None, out, qkv, pages, layer, rows_count, *rows, scale, window, splits, workspace)


def _attention(
    out: Tensor,
    qkv: Tensor,
    pages: Pages,
    layer: int,
    queries: Tensor,
    count: Tensor,
    row_line: Tensor,
    row_start: Tensor,
    row_offset: Tensor,
    scale: float,
    window: int | None,
) -> None:
    blocks: dict[int, list[int]] = {}
    for row, first in queries[: int(count)].tolist():
        blocks.setdefault(row, []).append(first)
    for row, firsts in blocks.items():
        begin, end = row_offset[row : row + 2].tolist()
        whole = _row(qkv[begin:end], pages, layer, int(row_line[row]), int(row_start[row]), scale, window)
        for first in firsts:
            out[begin + first : min(begin + first + BLOCK, end)] = whole[first : first + BLOCK].to(out.dtype)


def _decode(
    out: Tensor,
    qkv: Tensor,
    pages: Pages,
    layer: int,
    rows_count: Tensor,
    row_line: Tensor,
    row_start: Tensor,
    row_offset: Tensor,
    scale: float,
    window: int | None,
    splits: int,
    workspace: Tensor,
) -> None:
    rows = zip(row_line.tolist(), row_start.tolist(), row_offset.tolist(), strict=False)
    for line, start, token in list(rows)[: int(rows_count)]:
        whole = _row(qkv[token : token + 1], pages, layer, line, start, scale, window)
        out[token] = whole[0].to(out.dtype)


def _row(qkv: Tensor, pages: Pages, layer: int, line: int, start: int, scale: float, window: int | None) -> Tensor:
    """f32 [new tokens, heads · head_dim]."""
    new = len(qkv)
    q = qkv.float().unflatten(1, (-1, pages.head_dim))[:, : -2 * pages.kv_heads]
    numbers = pages.table[line, : -(-(start + new) // pages.page_tokens)].long()
    geometry = (pages.layers, pages.kv_heads, pages.page_tokens, pages.head_dim, getattr(torch, pages.dtype))
    k, v = read_pages(pages.arena, numbers, start + new, layer, *geometry)
    return ref.attention(q, [k], [v], [0, new], scale, window).flatten(1)
