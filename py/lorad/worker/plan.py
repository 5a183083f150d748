"""The plan as the worker sees it: named views of the one i32 array that the core writes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

STEP, ROWS, TOKENS, GROUPS, EDITS, OPENED, PAGE_INS, PAGE_IN_PAGES, CLEARED, SAMPLES, COPIES = range(11)
"""Places in the header."""


class Plan:
    """One plan. Arrays have their full capacity; the counts say how much of them is in use."""

    def __init__(self, layout: dict[str, tuple[int, int]], length: int) -> None:
        """`layout`: section name to (offset, length), `length`: of the whole array, as `Core` gives them."""
        self.layout = layout
        self.array: Ints = np.zeros(length, dtype=np.int32)
        for name, (offset, size) in layout.items():
            setattr(self, name, self.array[offset : offset + size])

    header: Ints
    row_line: Ints
    row_slot: Ints
    row_tag: Ints
    row_start: Ints
    row_offset: Ints
    row_sample: Ints
    token_id: Ints
    token_pos: Ints
    token_line: Ints
    group_slot: Ints
    group_tag: Ints
    group_begin: Ints
    group_end: Ints
    edit_line: Ints
    edit_col: Ints
    edit_page: Ints
    open_line: Ints
    open_request_lo: Ints
    open_request_hi: Ints
    clear_slot: Ints
    copy_source: Ints
    copy_target: Ints
    pagein_adapter: Ints
    pagein_slot: Ints
    pagein_begin: Ints
    pagein_page: Ints

    @property
    def rows(self) -> int:
        """Requests in this step."""
        return int(self.header[ROWS])

    @property
    def tokens(self) -> int:
        """New tokens in this step."""
        return int(self.header[TOKENS])

    @property
    def groups(self) -> int:
        """Token ranges that share an adapter."""
        return int(self.header[GROUPS])

    @property
    def samples(self) -> int:
        """Rows whose last token is sampled."""
        return int(self.header[SAMPLES])

    @property
    def edits(self) -> int:
        """Page-table edits."""
        return int(self.header[EDITS])

    @property
    def cleared(self) -> int:
        """Slots to empty."""
        return int(self.header[CLEARED])

    @property
    def copies(self) -> int:
        """Pages to copy before the rows are computed."""
        return int(self.header[COPIES])

    def opened(self) -> list[tuple[int, int]]:
        """(line, request id) of the requests that took a line in this step."""
        count = int(self.header[OPENED])
        low = self.open_request_lo[:count].astype(np.uint32).astype(np.uint64)
        high = self.open_request_hi[:count].astype(np.uint32).astype(np.uint64)
        return list(zip(self.open_line[:count].tolist(), (low | high << np.uint64(32)).tolist(), strict=True))

    def page_ins(self) -> list[tuple[int, int, Ints]]:
        """(adapter, slot, pages) of the adapters to copy in."""
        count = int(self.header[PAGE_INS])
        begin = self.pagein_begin
        return [
            (int(self.pagein_adapter[i]), int(self.pagein_slot[i]), self.pagein_page[begin[i] : begin[i + 1]].copy())
            for i in range(count)
        ]
