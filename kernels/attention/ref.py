"""softmax(scale · q Kᵀ) V over the tokens up to each query's own (Vaswani et al. 2017), heads sharing K and V (GQA).

With a window only over the last `window` of them (Beltagy et al. 2020, arXiv:2004.05150).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def attention(
    q: Tensor,  # f32 [n, heads, head_dim]
    keys: Sequence[Tensor],  # by row, f32 [tokens, kv_heads, head_dim]; the row's new tokens come last
    values: Sequence[Tensor],  # by row, f32 [tokens, kv_heads, head_dim]
    row_offset: Sequence[int],  # [rows + 1] where the row's new tokens begin in q
    scale: float,
    window: int | None = None,  # keys that a query sees at most, its own included
) -> Tensor:
    """Returns f32 [n, heads, head_dim]."""
    out = torch.empty_like(q)
    for row in range(len(keys)):
        begin, end = row_offset[row], row_offset[row + 1]
        shared = q.shape[1] // keys[row].shape[1]
        k, v = keys[row].repeat_interleave(shared, 1), values[row].repeat_interleave(shared, 1)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end], k) * scale
        position = torch.arange(len(k) - (end - begin), len(k))[:, None]
        scores.masked_fill_(torch.arange(len(k)) > position, -torch.inf)
        if window is not None:
            scores.masked_fill_(torch.arange(len(k)) <= position - window, -torch.inf)
        out[begin:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    return out
