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
    k_blocks, v_blocks = _blocks(arena, layer, layers, kv_heads, page_tokens, head_dim, dtype)
    shape = (len(pages) * page_tokens, kv_heads, head_dim)
    k = k_blocks[pages].permute(0, 3, 1, 2).reshape(shape)
    v = v_blocks[pages].permute(0, 2, 1, 3).reshape(shape)
    return k[:tokens].float(), v[:tokens].float()


def write_pages(
    arena: Tensor,  # u8 [pages, page_bytes]
    page: Tensor,  # i64 [n] of each token
    slot: Tensor,  # i64 [n] of each token within its page
    k: Tensor,  # f32 [n, kv_heads, head_dim]
    v: Tensor,  # f32 [n, kv_heads, head_dim]
    layer: int,
    layers: int,
    kv_heads: int,
    page_tokens: int,
    head_dim: int,
    dtype: torch.dtype,
) -> None:
    """Puts K and V of tokens where `read_pages` finds them."""
    k_blocks, v_blocks = _blocks(arena, layer, layers, kv_heads, page_tokens, head_dim, dtype)
    k_blocks[page, :, :, slot] = k.to(dtype)
    v_blocks[page, :, slot] = v.to(dtype)


def _blocks(
    arena: Tensor,
    layer: int,
    layers: int,
    kv_heads: int,
    page_tokens: int,
    head_dim: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """A layer's K, T [pages, kv_heads, head_dim, page_tokens], and V, T [pages, kv_heads, page_tokens, head_dim], as
    views of the arena."""
    count = layers * 2 * kv_heads * page_tokens * head_dim
    k, v = arena.view(dtype)[:, :count].view(len(arena), layers, 2, kv_heads, -1)[:, layer].unbind(1)
    shape = (len(arena), kv_heads)
    return k.view(*shape, head_dim, page_tokens), v.view(*shape, page_tokens, head_dim)
