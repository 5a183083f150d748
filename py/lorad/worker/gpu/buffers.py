"""`StepBuffers`: what kernels read of a plan, at addresses that never change, filled by one copy for each step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lorad.worker.plan import Ints, Plan

TILE_TOKENS = 16
"""Tokens of one adapter that a block of the LoRA kernels takes, at most."""
QUERY_TOKENS = 16
"""Likewise of one row, for a block of attention."""
ALIGN = 16
"""Sections begin at multiples of so many words: 64 bytes."""

TOKENS, ROWS, TILES, SAMPLES, SAMPLE_TILES, QUERIES, EDITS = range(7)
"""Places in `counts`."""


class Sections(NamedTuple):
    """The step's arrays: numpy views of the host's copy, or tensors of the device's. All are i32."""

    counts: NDArray[np.int32] | Tensor
    """[16]: how much of each section is real."""
    token_id: NDArray[np.int32] | Tensor
    token_pos: NDArray[np.int32] | Tensor
    token_line: NDArray[np.int32] | Tensor
    """[tokens] each, as in the plan."""
    row_line: NDArray[np.int32] | Tensor
    row_start: NDArray[np.int32] | Tensor
    """[rows] each, as in the plan."""
    row_offset: NDArray[np.int32] | Tensor
    """[rows + 1]."""
    tiles: NDArray[np.int32] | Tensor
    """[tiles, 4]: (slot, tag, first token, one past the last) of at most 16 tokens of one adapter."""
    sample_token: NDArray[np.int32] | Tensor
    sample_line: NDArray[np.int32] | Tensor
    """[rows] each: the sampled rows' last tokens and lines."""
    sample_tiles: NDArray[np.int32] | Tensor
    """[rows, 4]: as `tiles`, of sampled rows."""
    queries: NDArray[np.int32] | Tensor
    """[blocks, 2]: (row, first new token within the row) of at most 16 tokens of one row."""
    edits: NDArray[np.int32] | Tensor
    """[edits, 2]: (place in the flat page table, page)."""


class StepBuffers:
    """The host's copy, pinned if there is a GPU, and the device's."""

    def __init__(self, rows: int, tokens: int, device: torch.device) -> None:
        """`rows`, `tokens`: of the largest step."""
        self.edits_max = 4 * rows
        """More than these, as a long prompt's first step has, are written apart."""
        # Each adapter's last tile may be short, and each row's last block.
        tiles, queries = rows + tokens // TILE_TOKENS, rows + tokens // QUERY_TOKENS
        self.shapes: dict[str, tuple[int, ...]] = {
            "counts": (ALIGN,),
            "token_id": (tokens,),
            "token_pos": (tokens,),
            "token_line": (tokens,),
            "row_line": (rows,),
            "row_start": (rows,),
            "row_offset": (rows + 1,),
            "tiles": (tiles, 4),
            "sample_token": (rows,),
            "sample_line": (rows,),
            "sample_tiles": (rows, 4),
            "queries": (queries, 2),
            "edits": (self.edits_max, 2),
        }
        self._begin: dict[str, int] = {}
        length = 0
        for name, shape in self.shapes.items():
            self._begin[name] = length
            length += -(-int(np.prod(shape)) // ALIGN) * ALIGN
        self._pinned = torch.zeros(length, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._host: Ints = self._pinned.numpy()
        self._device = torch.zeros(length, dtype=torch.int32, device=device)
        self.host = Sections(**{name: self._section(self._host, name) for name in self.shapes})
        self.device = Sections(**{name: self._section(self._device, name) for name in self.shapes})

    def _section(self, whole: NDArray[np.int32] | Tensor, name: str) -> NDArray[np.int32] | Tensor:
        shape, begin = self.shapes[name], self._begin[name]
        return whole[begin : begin + int(np.prod(shape))].reshape(shape)

    def fill(self, plan: Plan) -> None:
        """Writes a plan's step to the host's copy, page-table edits apart."""
        host, counts = self.host, self._host[:ALIGN]
        rows, tokens, groups = plan.rows, plan.tokens, plan.groups
        for name in ("token_id", "token_pos", "token_line"):
            getattr(host, name)[:tokens] = getattr(plan, name)[:tokens]
        host.row_line[:rows] = plan.row_line[:rows]
        host.row_start[:rows] = plan.row_start[:rows]
        host.row_offset[: rows + 1] = plan.row_offset[: rows + 1]
        sampled = np.flatnonzero(plan.row_sample[:rows])
        samples = len(sampled)
        last = plan.row_offset[1 : rows + 1][sampled] - 1
        host.sample_token[:samples] = last
        host.sample_line[:samples] = plan.row_line[:rows][sampled]
        begin, end = plan.group_begin[:groups], plan.group_end[:groups]
        owners = plan.group_slot[:groups], plan.group_tag[:groups]
        counts[TILES] = cut(host.tiles, owners, begin, end, TILE_TOKENS)
        counts[SAMPLE_TILES] = 0
        if groups:
            places = np.searchsorted(last, begin), np.searchsorted(last, end)
            counts[SAMPLE_TILES] = cut(host.sample_tiles, owners, *places, TILE_TOKENS)
        lengths = np.diff(plan.row_offset[: rows + 1])
        zero = np.zeros(rows, dtype=np.int32)
        counts[QUERIES] = cut_from(host.queries, np.arange(rows, dtype=np.int32), zero, lengths, QUERY_TOKENS)
        counts[TOKENS], counts[ROWS], counts[SAMPLES], counts[EDITS] = tokens, rows, samples, 0

    def edit(self, places: Ints, pages: Ints) -> None:
        """Page-table edits of the step, at most `edits_max`; `places` in the flat table."""
        count = len(places)
        self.host.edits[:count, 0], self.host.edits[:count, 1] = places, pages
        self._host[EDITS] = count

    def send(self) -> None:
        """Copies the step to the device, in the stream's order; the host's copy may be written again after the step."""
        self._device.copy_(self._pinned, non_blocking=True)


def cut(tiles: Ints, owners: tuple[Ints, Ints], begin: Ints, end: Ints, most: int) -> int:
    """Writes ranges cut to pieces of at most `most` as (slot, tag, begin, end); gives how many they are."""
    count = (end - begin + most - 1) // most
    total = int(count.sum())
    of = np.repeat(np.arange(len(count)), count)
    first = begin[of] + most * (np.arange(total) - np.repeat(np.cumsum(count) - count, count))
    tiles[:total, 0], tiles[:total, 1] = owners[0][of], owners[1][of]
    tiles[:total, 2], tiles[:total, 3] = first, np.minimum(first + most, end[of])
    return total


def cut_from(blocks: Ints, owner: Ints, begin: Ints, end: Ints, most: int) -> int:
    """The same as (owner, begin)."""
    count = (end - begin + most - 1) // most
    total = int(count.sum())
    of = np.repeat(np.arange(len(count)), count)
    blocks[:total, 0] = owner[of]
    blocks[:total, 1] = begin[of] + most * (np.arange(total) - np.repeat(np.cumsum(count) - count, count))
    return total
