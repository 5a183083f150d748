"""Touching memory ahead of its use.

The system gives a page of memory when it's first written, which in a virtual machine may take longer than computing
what is written: prefill of 512 tokens took 159 ms instead of 135 ms while it met new pages. A thread of the lowest
priority has the next part of the pool given in idle time. What is never used stays ungiven.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

AHEAD_BYTES = 128 << 20
"""Beyond the highest byte that was used."""
PIECE_BYTES = 4 << 20
SYSTEM_PAGE = 4096
MADV_POPULATE_WRITE = 23
"""Since Linux 5.14."""


class TouchAhead:
    """A thread that touches the beginning of an array, as far as it's used and a bit further."""

    def __init__(self, memory: NDArray[np.uint8], ahead_bytes: int = AHEAD_BYTES) -> None:
        """`memory`: zeros that nobody has touched yet."""
        self._memory = memory  # kept while the thread may write to it
        self._begin, self._ahead = memory.ctypes.data, ahead_bytes
        self._end = self._begin + memory.nbytes
        self._wanted = min(self._begin + ahead_bytes, self._end)
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="lorad-touch", daemon=True)
        if sys.platform == "linux":
            self._thread.start()

    def used(self, end_byte: int) -> None:
        """Something below this byte is written now."""
        wanted = min(self._begin + end_byte + self._ahead, self._end)
        # A piece is the least that is worth waking the thread for.
        if wanted - self._wanted >= PIECE_BYTES or (wanted == self._end and wanted > self._wanted):
            with self._changed:
                self._wanted = wanted
                self._changed.notify()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        done = -(-self._begin // SYSTEM_PAGE) * SYSTEM_PAGE
        while True:
            with self._changed:
                while not self._closed and (left := self._wanted // SYSTEM_PAGE * SYSTEM_PAGE - done) <= 0:
                    self._changed.wait()
                if self._closed:
                    return
                piece = min(left, PIECE_BYTES)
            # An older system can't do it: then pages are given as they are met.
            if madvise(ctypes.c_void_p(done), ctypes.c_size_t(piece), MADV_POPULATE_WRITE):
                return
            done += piece
