"""`Graphs`: captured decode steps, by how many rows and how many adapter tiles they have room for.

A graph is of a bucket and not of an adapter: kernels find adapters, pages and lengths in tensors, and the grid covers
the bucket's maximum. So nothing that happens to adapters makes a graph invalid, and none is ever captured again. See
docs/gpu.md.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from lorad.worker.gpu.capture import Capture, Replay

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Buckets of rows; more rows than the last aren't captured."""
TILES = (0, 4, 16)
"""Buckets of adapter tiles below the largest, which has one for each row."""


class Key(NamedTuple):
    """What a graph has room for."""

    rows: int
    tiles: int
    """0: it has no adapter kernels."""


class Graphs:
    """Captures from a list, the likeliest first, as time allows."""

    def __init__(
        self,
        capture: Capture,
        forward: Callable[[Key], None],
        empty: Callable[[], None],
        *,
        rows_max: int,
        bytes_max: int,
        on_capture: Callable[[Key], None] = lambda key: None,
    ) -> None:
        """`forward` starts the step of a bucket; `empty` makes the buffers hold a step without rows, as capturing runs
        what it captures, and the pages of the last step may be somebody else's by now. `bytes_max`: of device memory;
        what comes after isn't captured. `on_capture`: told of each bucket of the list before it's captured."""
        self._capture = capture
        self._empty = empty
        self._forward = forward
        self._bytes_max = bytes_max
        self._on_capture = on_capture
        rows = [count for count in ROWS if count < rows_max]
        self._rows = [*rows, rows_max] if rows_max <= ROWS[-1] else [*rows]
        self._replays: dict[Key, Replay] = {}
        self._wanted = deque(self._keys())
        self.captures = 0
        self.replays = 0
        self.seconds = 0.0
        """That capturing took."""

    def _keys(self) -> list[Key]:
        """All there are. Small ones first, where launches weigh most; of a size the base's own and the largest, as any
        step fits one of these; the rest when these are there."""
        need = [Key(rows, tiles) for rows in self._rows for tiles in (0, rows)]
        nice = [Key(rows, tiles) for rows in self._rows for tiles in TILES[1:] if tiles < rows]
        return [*need, *nice]

    def key(self, rows: int, tiles: int) -> Key | None:
        """The smallest captured bucket for a step; None: it's computed without a graph."""
        at = bisect_left(self._rows, rows)
        for count in self._rows[at:]:
            buckets = [*(bucket for bucket in TILES if bucket < count), count]
            for bucket in buckets[bisect_left(buckets, tiles) :]:
                if (bucket == 0) == (tiles == 0) and (found := Key(count, bucket)) in self._replays:
                    return found
        return None

    def replay(self, key: Key) -> None:
        """Computes the step that the buffers hold."""
        self.replays += 1
        self._replays[key]()

    @property
    def bytes(self) -> int:
        """Device memory that graphs take."""
        return self._capture.bytes

    @property
    def pending(self) -> int:
        """Graphs that will be captured still."""
        return len(self._wanted)

    def add(self, key: Key) -> None:
        """Captures a bucket, whatever the list has."""
        self._empty()
        self._replays[key] = self._capture(lambda: self._forward(key))
        self.captures += 1

    def capture(self, seconds: float) -> None:
        """Captures the next of the list, and further ones until so much time is over. Negative: none."""
        began = time.perf_counter()
        while self._wanted and seconds >= 0:
            if self.bytes >= self._bytes_max:
                self._wanted.clear()
                break
            key = self._wanted.popleft()
            self._on_capture(key)
            self.add(key)
            if time.perf_counter() - began >= seconds:
                break
        self.seconds += time.perf_counter() - began
