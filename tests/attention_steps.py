"""Steps of attention with rows of any length, for kernels and definitions; outputs begin as NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from lorad.kernels.attention import kernel
from paged import NOWHERE, Geometry, close, full_lines, i32, normal

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LAYER = 1
ROWS = [(0, 1), (0, 37), (5, 1), (63, 1), (17, 0), (64, 1), (31, 3), (16, 17), (15, 1), (100, 20)]
"""(tokens before the step, tokens of the step)."""
GEOMETRIES = [
    (Geometry(9, 3, 64, 16, F32, F32), None),
    (Geometry(9, 3, 64, 16, BF16, BF16), 5),
    (Geometry(32, 8, 20, 16, F32, F16), 64),
    (Geometry(32, 8, 32, 16, F16, F16), None),
    (Geometry(4, 4, 80, 8, F32, F32), 33),
    (Geometry(8, 1, 6, 64, BF16, F16), 1),
    (Geometry(20, 1, 16, 32, F32, F32), 65),
    (Geometry(4, 1, 256, 16, F32, BF16), 32),
]


class Step:
    """Rows with a line each, in another order than lines, and tokens and blocks after those that are real."""

    def __init__(self, seed: int, geometry: Geometry, rows: list[tuple[int, int]]) -> None:
        self.geometry, self.rows = geometry, rows
        self.random = torch.Generator().manual_seed(seed)
        self.row_line = torch.randperm(len(rows), generator=self.random).int()
        lengths = [0] * len(rows)
        for line, (start, new) in zip(self.row_line.tolist(), rows, strict=True):
            lengths[line] = start + new
        self.pages = full_lines(self.random, geometry, lengths, LAYER)
        self.row_start = i32(*(start for start, _ in rows))
        self.row_offset = torch.cumsum(i32(0, *(new for _, new in rows)), 0).int()
        self.tokens = sum(new for _, new in rows)
        self.qkv = normal(self.random, self.tokens + 3, geometry.width).to(geometry.of)
        self.qkv[self.tokens :] = torch.nan

    def alone(self, row: int, begin: int = 0, end: int | None = None) -> Step:
        """A step of the row's new tokens from `begin` to `end`."""
        start, new = self.rows[row]
        first, end = int(self.row_offset[row]), new if end is None else end
        step = Step.__new__(Step)
        step.geometry, step.pages, step.random = self.geometry, self.pages, self.random
        step.rows, step.tokens = [(start + begin, end - begin)], end - begin
        step.row_line, step.row_start = self.row_line[row : row + 1], i32(start + begin)
        step.row_offset = i32(0, end - begin)
        step.qkv = self.qkv[first + begin : first + end]
        return step

    def attend(self, operator: object = kernel, window: int | None = None) -> Tensor:
        blocks = [(row, first) for row, (_, new) in enumerate(self.rows) for first in range(0, new, kernel.BLOCK)]
        queries = i32(*(number for block in [*blocks, (NOWHERE, NOWHERE)] for number in block)).view(-1, 2)
        out = self.nan()
        rows = (self.row_line, self.row_start, self.row_offset)
        arena = self.pages.arena.clone()
        operator.attention(out, self.qkv, self.pages, LAYER, queries, i32(len(blocks)), *rows, 0.3, window)
        assert torch.equal(self.pages.arena, arena)
        return out

    def decode(self, splits: int, operator: object = kernel, window: int | None = None, padding: int = 2) -> Tensor:
        count = len(self.rows)
        out = self.nan()
        nowhere = torch.full((padding,), NOWHERE, dtype=torch.int32)
        rows = (torch.cat([real, nowhere]) for real in (self.row_line, self.row_start, self.row_offset))
        needed = kernel.decode_workspace(count + padding, self.geometry.heads, self.geometry.head_dim, splits)
        workspace = torch.full((needed + 5,), torch.nan)
        arena = self.pages.arena.clone()
        operator.attention_decode(out, self.qkv, self.pages, LAYER, i32(count), *rows, 0.3, window, splits, workspace)
        assert torch.equal(self.pages.arena, arena)
        assert workspace[needed:].isnan().all()
        return out

    def nan(self) -> Tensor:
        return torch.full((len(self.qkv), self.geometry.heads * self.geometry.head_dim), torch.nan).to(self.geometry.of)

    def check(self, got: Tensor, wanted: Tensor) -> None:
        """Real tokens are as they should be, others aren't written."""
        close(got[: self.tokens], wanted[: self.tokens], self.geometry.tolerance)
        assert got[self.tokens :].isnan().all() and wanted[self.tokens :].isnan().all()
