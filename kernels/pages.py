"""The page pool as kernels see it: where the KV of a token lies."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lorad.kernels.require import FLOATS, require


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

    def elements(self) -> Tensor:
        """The same memory as `dtype` [pages, page_bytes / size of an element], checked.

        Raises ValueError if a page doesn't hold what it should, or the table isn't i32.
        """
        dtype = getattr(torch, self.dtype, None)
        if dtype not in FLOATS:
            raise ValueError(f"pages of {self.dtype}, which isn't a number type of K and V")
        require("arena", self.arena, (None, None), torch.uint8)
        require("table", self.table, (None, None), torch.int32)
        page_bytes = self.arena.shape[1]
        if page_bytes % 64 or page_bytes < self.layers * self._layer_elements * dtype.itemsize:
            raise ValueError(f"pages of {page_bytes} bytes can't hold {self.layers} layers")
        return self.arena.view(dtype)

    def layer_begin(self, layer: int) -> int:
        """Where its K begins in a page, in elements; V begins half a layer later. Raises ValueError if there's none."""
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer {layer} of {self.layers}")
        return layer * self._layer_elements

    def query_heads(self, qkv: Tensor) -> int:
        """Heads of q in a row of qkv [n, (heads + 2 · kv_heads) · head_dim].

        Raises ValueError if it isn't that for any number of heads that share K and V evenly.
        """
        require("qkv", qkv, (None, None), *FLOATS)
        heads = qkv.shape[1] // self.head_dim - 2 * self.kv_heads
        if qkv.shape[1] % self.head_dim or heads < 1 or heads % self.kv_heads:
            raise ValueError(f"qkv has {qkv.shape[1]} columns: {self.kv_heads} heads of {self.head_dim} are in pages")
        return heads

    @property
    def _layer_elements(self) -> int:
        return 2 * self.kv_heads * self.page_tokens * self.head_dim
