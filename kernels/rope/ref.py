"""Rotary embedding (Su et al. 2021, arXiv:2104.09864) in Hugging Face's half-split convention; the KV page layout."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(
    x: Tensor,  # f32 [n, heads, head_dim]
    cos: Tensor,  # f32 [positions, head_dim / 2]
    sin: Tensor,  # f32 [positions, head_dim / 2]
    position: Tensor,  # i64 [n]
) -> Tensor:
    """Returns f32 [n, heads, head_dim]: (a, b) -> (a cos - b sin, b cos + a sin) for the halves of each head."""
    a, b = x.chunk(2, dim=-1)
    c, s = cos[position][:, None], sin[position][:, None]
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1)


def read_pages(
    arena: Tensor,  # u8 [pages, page_bytes]
    pages: Tensor,  # i64 [columns] of one line
    tokens: int,
    layer: int,
    layers: int,
    kv_heads: int,
    page_tokens: int,
    head_dim: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """K and V of a line's first `tokens` tokens, f32 [tokens, kv_heads, head_dim] each.

    A page is [layer][k, v][kv_head], then K as [head_dim][token] and V as [token][head_dim].
    """
    count = layers * 2 * kv_heads * page_tokens * head_dim
    flat = arena[pages][:, : count * dtype.itemsize].contiguous().view(dtype)
    blocks = flat.view(len(pages), layers, 2, kv_heads, page_tokens * head_dim)[:, layer]
    k = blocks[:, 0].reshape(len(pages), kv_heads, head_dim, page_tokens).permute(0, 3, 1, 2)
    v = blocks[:, 1].reshape(len(pages), kv_heads, page_tokens, head_dim).permute(0, 2, 1, 3)
    shape = (len(pages) * page_tokens, kv_heads, head_dim)
    return k.reshape(shape)[:tokens].float(), v.reshape(shape)[:tokens].float()
