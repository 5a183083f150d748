"""Lines of tokens in scattered pages, for kernels. Whatever isn't a token's place is NaN or no number of a page."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lorad.kernels.pages import Pages
from lorad.kernels.rope.ref import write_pages

NOWHERE = 1 << 24
"""Reading such a page ends the process."""


class Geometry(NamedTuple):
    """A model's heads, and how pages hold them."""

    heads: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    of: torch.dtype
    """Activations."""
    kept: torch.dtype
    """K and V."""
    layers: int = 2

    @property
    def width(self) -> int:
        """Of qkv."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def tolerance(self) -> float:
        """Of what is computed in f32 and rounded to `of`, also on its way if nothing is wider."""
        if torch.float32 in (self.of, self.kept) or self.of != self.kept:
            return {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[self.of]
        return {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[self.of]


def normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=random)


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def close(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    """Relative to the largest."""
    wanted = wanted.float()
    torch.testing.assert_close(got.float(), wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


def empty_lines(random: torch.Generator, geometry: Geometry, lengths: list[int]) -> Pages:
    """Room for lines of so many tokens, in pages in any order among others; nothing is written yet."""
    _, kv_heads, head_dim, page_tokens, _, kept, layers = geometry
    needed = [-(-length // page_tokens) for length in lengths]
    page_bytes = -(-layers * 2 * kv_heads * page_tokens * head_dim * kept.itemsize // 64) * 64 + 64
    arena = torch.full((sum(needed) + 3, page_bytes), 0xFF, dtype=torch.uint8)  # NaN in every type
    table = torch.full((len(lengths), max(needed) + 2), NOWHERE, dtype=torch.int32)
    order = torch.randperm(len(arena), generator=random).int()
    for line, (count, numbers) in enumerate(zip(needed, order[: sum(needed)].split(needed), strict=True)):
        table[line, :count] = numbers
    name = str(kept).removeprefix("torch.")
    return Pages(arena, table, layers, kv_heads, page_tokens, head_dim, name)


def full_lines(random: torch.Generator, geometry: Geometry, lengths: list[int], layer: int) -> Pages:
    """Lines of so many random tokens in a layer; the other layers are NaN."""
    pages = empty_lines(random, geometry, lengths)
    for line, length in enumerate(lengths):
        fill(random, geometry, pages, line, range(length), layer)
    return pages


def fill(
    random: torch.Generator, geometry: Geometry, pages: Pages, line: int, tokens: range, layer: int, to: float = 1
) -> None:
    """Random K and V, times `to`, at some tokens of a line."""
    place = torch.tensor(tokens)
    k, v = normal(random, 2, len(place), geometry.kv_heads, geometry.head_dim) * to
    page = pages.table[line, place // pages.page_tokens].long()
    shape = (pages.layers, pages.kv_heads, pages.page_tokens, pages.head_dim, geometry.kept)
    write_pages(pages.arena, page, place % pages.page_tokens, k, v, layer, *shape)
