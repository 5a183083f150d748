"""Memory is given before it's used, and no further."""

from __future__ import annotations

import ctypes
import mmap
import sys
import time

import numpy as np
import pytest

from lorad.worker.touch import PIECE_BYTES, SYSTEM_PAGE, TouchAhead

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux gives memory on request")
AHEAD = 2 * PIECE_BYTES


def fresh(size: int) -> np.ndarray:
    """Memory that nobody has touched: what an allocator gives may have been used before."""
    return np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)


def given(memory: np.ndarray) -> int:
    """Bytes that the system has given, counted in whole pages."""
    begin = -(-memory.ctypes.data // SYSTEM_PAGE) * SYSTEM_PAGE
    pages = (memory.ctypes.data + memory.nbytes - begin) // SYSTEM_PAGE
    present = (ctypes.c_ubyte * pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(pages * SYSTEM_PAGE), present) == 0
    return sum(byte & 1 for byte in present) * SYSTEM_PAGE


def settled(memory: np.ndarray, at_least: int) -> int:
    """What is given once it's at least that much, or after ten seconds."""
    end = time.monotonic() + 10
    while given(memory) < at_least and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)
    return given(memory)


def test_memory_is_given_a_bit_ahead_of_its_use() -> None:
    memory = fresh(64 << 20)
    assert given(memory) == 0
    touch = TouchAhead(memory, AHEAD)
    slack = 2 * SYSTEM_PAGE
    first = settled(memory, AHEAD - slack)
    # Where the system gives huge pages it rounds up to those.
    assert AHEAD - slack <= first <= AHEAD + (4 << 20)
    touch.used(PIECE_BYTES // 2)  # not worth it
    assert settled(memory, 0) == first
    touch.used(20 << 20)
    assert (20 << 20) + AHEAD - slack <= settled(memory, (20 << 20) + AHEAD - slack) < 40 << 20
    touch.used(1 << 20)
    touch.used(memory.nbytes)
    assert settled(memory, memory.nbytes - slack) >= memory.nbytes - slack
    assert not memory.any()
    touch.close()
    touch.close()


def test_a_closed_one_gives_nothing_more() -> None:
    memory = fresh(32 << 20)
    touch = TouchAhead(memory, AHEAD)
    touch.close()
    reached = given(memory)
    touch.used(memory.nbytes)
    time.sleep(0.1)
    assert given(memory) == reached
