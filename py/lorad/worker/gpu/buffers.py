"""`StepBuffers`: what kernels read of a plan, at addresses that never change, filled by one copy for each step."""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lorad.worker.ops import StepArrays
from lorad.worker.plan import Ints, Plan

TILE_TOKENS = 16
"""Tokens of one adapter that a block of the LoRA kernels takes, at most."""
QUERY_TOKENS = 16
"""Likewise of one row, for a block of attention."""
ALIGN = 16
"""Sections begin at multiples of so many words: 64 bytes."""

TOKENS, ROWS, TILES, SAMPLES, SAMPLE_TILES, QUERIES = range(6)
"""Places in `counts`."""
EDITS_OF_ROW = 4


Array = TypeVar("Array", NDArray[np.int32], Tensor)


class Sections(NamedTuple, Generic[Array]):
    """The step's arrays: numpy views of the host's copy, or tensors of the device's. All are i32."""

    counts: Array
    """[16]: how much of each section is real."""
    token_id: Array
    token_pos: Array
    token_line: Array
    """[tokens] each, as in the plan."""
    row_line: Array
    row_start: Array
    """[rows] each, as in the plan."""
    row_offset: Array
    """[rows + 1]."""
    tiles: Array
    """[tiles, 4]: (slot, tag, first token, one past the last) of at most 16 tokens of one adapter."""
    sample_token: Array
    sample_line: Array
    sample_position: Array
    """[rows] each: the sampled rows' last tokens, their lines, and where in these the tokens stand."""
    sample_tiles: Array
    """[rows, 4]: as `tiles`, of sampled rows."""
    queries: Array
    """[blocks, 2]: (row, first new token within the row) of at most 16 tokens of one row."""
    edits: Array
    """[edits, 2]: (place in the flat page table, page). Those that aren't real have a place after the last line."""


class StepBuffers:
    """The host's copies, pinned if there is a GPU, and the device's."""

    def __init__(self, rows: int, tokens: int, columns: int, device: torch.device, *, steps: int = 1) -> None:
        """`rows`, `tokens`: of the largest step; `columns`: of the page table, which has a line for each row; `steps`:
        that may be under way, each with a copy of its own on the host."""
        self._no_place = rows * columns
        self.edits_max = EDITS_OF_ROW * rows
        """Page-table edits of one `send`: more, as a long prompt's first step has, take several."""
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
            "sample_position": (rows,),
            "sample_tiles": (rows, 4),
            "queries": (queries, 2),
            "edits": (self.edits_max, 2),
        }
        self._begin: dict[str, int] = {}
        length = 0
        for name, shape in self.shapes.items():
            self._begin[name] = length
            length += -(-int(np.prod(shape)) // ALIGN) * ALIGN
        pinned = [torch.zeros(length, dtype=torch.int32, pin_memory=device.type == "cuda") for _ in range(steps)]
        self._copies = deque(pinned)
        self._device = torch.zeros(length, dtype=torch.int32, device=device)
        self.turn()
        self.device: Sections[Tensor] = Sections(**{name: self._section(self._device, name) for name in self.shapes})

    def turn(self) -> None:
        """The next step begins: it's written to the copy of the step that was sent so many before."""
        self._copies.rotate()
        self._pinned = self._copies[0]
        self._host: Ints = self._pinned.numpy()
        self.host: Sections[Ints] = Sections(**{name: self._section(self._host, name) for name in self.shapes})

    def _section(self, whole: Array, name: str) -> Array:
        shape, begin = self.shapes[name], self._begin[name]
        return whole[begin : begin + int(np.prod(shape))].reshape(shape)

    def fill(self, plan: Plan) -> None:
        """Writes a plan's step to the host's copy, but for what it samples and its page-table edits."""
        host, counts = self.host, self._host[:ALIGN]
        rows, tokens, groups = plan.rows, plan.tokens, plan.groups
        for name in ("token_id", "token_pos", "token_line"):
            getattr(host, name)[:tokens] = getattr(plan, name)[:tokens]
        host.row_line[:rows] = plan.row_line[:rows]
        host.row_start[:rows] = plan.row_start[:rows]
        host.row_offset[: rows + 1] = plan.row_offset[: rows + 1]
        begin, end = plan.group_begin[:groups], plan.group_end[:groups]
        owners = plan.group_slot[:groups], plan.group_tag[:groups]
        counts[TILES] = cut(host.tiles, owners, begin, end, TILE_TOKENS)
        lengths = np.diff(plan.row_offset[: rows + 1])
        zero = np.zeros(rows, dtype=np.int32)
        counts[QUERIES] = cut_from(host.queries, np.arange(rows, dtype=np.int32), zero, lengths, QUERY_TOKENS)
        counts[TOKENS], counts[ROWS] = tokens, rows
        self.edit(_NONE, _NONE)

    def sample(self, step: StepArrays) -> None:
        """Writes which tokens are sampled: those that `step` names, whatever the plan has."""
        host, counts, last = self.host, self._host[:ALIGN], step.sample_token
        samples = len(last)
        host.sample_token[:samples] = last
        host.sample_token[samples:] = 0  # a bucket's other rows are computed too, of some token that is there
        host.sample_line[:samples] = step.token_line[last]
        host.sample_position[:samples] = step.token_pos[last]
        begin, end = (np.searchsorted(last, at).astype(np.int32) for at in (step.group_begin, step.group_end))
        counts[SAMPLE_TILES] = cut(host.sample_tiles, (step.group_slot, step.group_tag), begin, end, TILE_TOKENS)
        counts[SAMPLES] = samples

    def empty(self) -> None:
        """Makes it a step without rows."""
        self._host[:ALIGN] = 0
        self.host.sample_token[:] = 0
        self.edit(_NONE, _NONE)

    def count(self, place: int) -> int:
        """How much is real of a section of the host's copy."""
        return int(self._host[place])

    def edit(self, places: Ints, pages: Ints) -> None:
        """Page-table edits of the step, at most `edits_max`; `places` in the flat table."""
        edits, count = self.host.edits, len(places)
        edits[:count, 0], edits[:count, 1] = places, pages
        edits[count:, 0] = self._no_place

    def send(self) -> None:
        """Copies the step to the device, in the stream's order; this copy may be written again after the step."""
        self._device.copy_(self._pinned, non_blocking=True)


_NONE: Ints = np.empty(0, dtype=np.int32)


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
