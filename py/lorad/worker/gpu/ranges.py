"""Contiguous ranges of a numbered space, given out and taken back."""

from __future__ import annotations

from bisect import bisect_left


class Ranges:
    """First fit over the free ranges; neighbours are joined again as they come back."""

    def __init__(self, size: int) -> None:
        self.free = size
        """In all of the free ranges."""
        self._ranges = [(0, size)] if size else []
        # (begin, length) of the free ones, by begin; no two touch.

    def take(self, length: int) -> int | None:
        """Where a range of `length` begins that is now taken; None: no free one is as long."""
        for index, (begin, size) in enumerate(self._ranges):
            if size >= length:
                self._ranges[index : index + 1] = [(begin + length, size - length)] if size > length else []
                self.free -= length
                return begin
        return None

    def give(self, begin: int, length: int) -> None:
        """Takes back what `take` gave."""
        if not length:
            return
        self.free += length
        index = bisect_left(self._ranges, (begin,))
        stop = index
        if index and sum(self._ranges[index - 1]) == begin:
            index -= 1
            begin, length = self._ranges[index][0], length + self._ranges[index][1]
        if stop < len(self._ranges) and self._ranges[stop][0] == begin + length:
            length += self._ranges[stop][1]
            stop += 1
        self._ranges[index:stop] = [(begin, length)]
