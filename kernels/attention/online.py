"""Softmax over the keys of a line as they come by (Milakov and Gimelshein 2018, arXiv:1805.02867), in blocks of keys.

Blocks begin at multiples of their size, and one that a query doesn't see leaves its sums as they were, bit for bit: so
what a query gets depends on its position alone, not on which queries share its program.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def attend(
    q: tl.tensor,  # T [rows, BLOCK_DIM], 0 beyond HEAD_DIM
    position: tl.tensor,  # i32 [rows], from `begin` to `end` - 1
    begin: tl.tensor,  # keys that are read, a multiple of BLOCK_KEYS
    end: tl.tensor,
    k_pages: tl.tensor,  # [pages, page_elements], at the head's K of page 0
    v_pages: tl.tensor,  # likewise V
    page_elements: tl.tensor,
    line: tl.tensor,  # i32 [columns], a line of the page table
    steepness: tl.tensor,  # scale · log2 e
    window: tl.tensor,  # keys that a query sees at most, its own included; None: all
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WIDEN: tl.constexpr,  # q is f32, pages aren't
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns for each row the largest score (in powers of 2), f32 [rows], the sum of weights relative to it, f32
    [rows], and their sum times V, f32 [rows, BLOCK_DIM]. Of a row without keys: -inf, 0, 0."""
    dim = tl.arange(0, BLOCK_DIM)
    most = tl.full([q.shape[0]], float("-inf"), tl.float32)
    weights = tl.zeros([q.shape[0]], tl.float32)
    sums = tl.zeros([q.shape[0], BLOCK_DIM], tl.float32)
    last = end - 1
    for first in range(begin, end, BLOCK_KEYS):
        key = first + tl.arange(0, BLOCK_KEYS)
        # Nothing after the last key may be looked at: the table's columns are anything there, unwritten places NaN. In
        # its stead K gets that of the last page, whose scores are masked, and V that of the last key, whose weight is
        # 0 there. Loads need no mask in that way, and K's runs of a page stay visible to the compiler.
        page = tl.load(line + tl.minimum(key // PAGE_TOKENS, last // PAGE_TOKENS)).to(tl.int64)
        k_place = (page * page_elements + key % PAGE_TOKENS)[None, :] + dim[:, None] * PAGE_TOKENS
        k = tl.load(k_pages + k_place, mask=dim[:, None] < HEAD_DIM, other=0)
        if WIDEN:
            k = k.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * steepness
        seen = key[None, :] <= position[:, None]
        if window is not None:
            seen = seen & (key[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(most, tl.max(scores, 1))
        against = tl.where(larger == float("-inf"), 0.0, larger)  # -inf - -inf is NaN
        weight = tl.exp2(scores - against[:, None])
        fade = tl.exp2(most - against)
        weights = weights * fade + tl.sum(weight, 1)
        near = tl.minimum(key, last)
        page = tl.load(line + near // PAGE_TOKENS).to(tl.int64)
        v_place = (page * page_elements + near % PAGE_TOKENS * HEAD_DIM)[:, None] + dim[None, :]
        v = tl.load(v_pages + v_place, mask=dim[None, :] < HEAD_DIM, other=0)
        if WIDEN:
            v = v.to(tl.float32)
        sums = tl.dot(weight.to(v.dtype), v, sums * fade[:, None], input_precision="ieee")
        most = larger
    return most, weights, sums
