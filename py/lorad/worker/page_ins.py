"""Copying adapters into pages, off the step."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad.adapters.image import AdapterImage
from lorad.engine.messages import PAGE_IN_SECONDS
from lorad.worker.plan import Ints


class PageIn(NamedTuple):
    """One finished copy; `error` tells why it failed."""

    adapter: int
    slot: int
    pages: Ints
    error: str | None
    asked: float
    """When it was asked for, on the clock of `time.monotonic`."""

    def failed(self, failure: Exception) -> PageIn:
        """The same with an error."""
        return self._replace(error=f"{type(failure).__name__}: {failure}")


Copy = Callable[[int, Ints], int]
"""Copies an adapter's image to pages, given in the image's order, and says how many bytes that were."""


def runs(pages: Ints) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first page) of each run of neighbours in `pages`."""
    breaks = (np.flatnonzero(np.diff(pages) != 1) + 1).tolist()
    for begin, end in zip([0, *breaks], [*breaks, len(pages)], strict=True):
        yield begin, end, int(pages[begin])


class ArenaCopy:
    """Reads images straight into an arena in this process' memory."""

    def __init__(self, arena: NDArray[np.uint8], image_of: Callable[[int], AdapterImage]) -> None:
        """`arena`: u8 [pages, page_bytes]."""
        self._arena = arena
        self._image_of = image_of

    def __call__(self, adapter: int, pages: Ints) -> int:
        image = self._image_of(adapter)
        for begin, end, first in runs(pages):
            image.read(begin, self._arena[first : first + end - begin])
        return int(pages.size * self._arena.shape[1])


class PageIns:
    """Copies images on one thread of its own, so a cold adapter delays only those who asked for it.

    The core keeps the target pages owned by the adapter until it hears of the end, so nobody else reads or writes them.
    """

    def __init__(self, copy: Copy, on_finish: Callable[[], None] = lambda: None, *, bytes_per_s: int = 0) -> None:
        """`copy` and, after each, `on_finish` are called on the copying thread. `bytes_per_s`: a copy takes as long as
        that says at least; 0: no longer than it takes."""
        self._bytes_per_s = bytes_per_s
        self._copy_pages = copy
        self._on_finish = on_finish
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lorad-page-in")
        # From the start: a copy that is refused as there's no thread for it would stay queued, and reach its pages when
        # they are others'.
        self._thread.submit(int)
        self._lock = threading.Condition()
        self._finished: list[PageIn] = []
        self._pending = 0
        self.bytes = 0
        """Copied by now."""
        self.seconds = 0.0
        """That took."""
        self.counts = [0] * (len(PAGE_IN_SECONDS) + 1)
        """Copies by what each took, in the classes of `PAGE_IN_SECONDS`."""

    @property
    def pending(self) -> int:
        """Copies that were started and not yet taken by `finished`."""
        return self._pending

    def start(self, adapter: int, slot: int, pages: Ints) -> None:
        """Begins to copy an adapter's image to `pages`. One that can't begin has ended, with an error: nobody waits for
        it."""
        begun = PageIn(adapter, slot, pages, None, time.monotonic())
        try:
            self._thread.submit(self._copy, begun)
        except RuntimeError as failure:  # this is closed
            self._end(begun.failed(failure))
        self._pending += 1

    def finished(self) -> list[PageIn]:
        """The copies that have ended since the last call."""
        with self._lock:
            done, self._finished = self._finished, []
        self._pending -= len(done)
        return done

    def wait(self, seconds: float) -> None:
        """Until all that were started have ended, at most so long."""
        with self._lock:
            self._lock.wait_for(lambda: len(self._finished) == self._pending, seconds)

    def close(self) -> None:
        """Waits for the copy that runs and ends the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _copy(self, done: PageIn) -> None:
        began = time.perf_counter()
        try:
            copied = self._copy_pages(done.adapter, done.pages)
            if self._bytes_per_s:
                time.sleep(max(0.0, copied / self._bytes_per_s - (time.perf_counter() - began)))
        except Exception as failure:  # the adapter's waiters get the reason; nobody else notices
            done = done.failed(failure)
        else:
            self.bytes += copied
            took = time.perf_counter() - began
            self.seconds += took
            self.counts[bisect_left(PAGE_IN_SECONDS, took)] += 1
        self._end(done)

    def _end(self, done: PageIn) -> None:
        with self._lock:
            self._finished.append(done)
            self._lock.notify_all()
        self._on_finish()
