"""The page pool as kernels see it: where the KV of a token lies."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Pages(NamedTuple):
    """Equal pages; one holds the KV of `page_tokens` tokens for all layers.

    A page is `[layer][k, v][kv_head]`, then K as `[head_dim][token]` and V as `[token][head_dim]`, of `dtype`.
    """

    arena: Tensor
    """u8 [pages, page_bytes]; page_bytes is a multiple of 64."""
    table: Tensor
    """i32 [lines, columns]: the page of each `page_tokens` tokens of a line. Columns after its last are anything."""
    layers: int
    kv_heads: int
    page_tokens: int
    head_dim: int
    dtype: str
    """Of K and V: float32, float16 or bfloat16, as torch calls it."""
