"""What kernels read of the device table: a tile's adapter, a module's span, a run."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_at(
    tiles,  # i32 [tiles_max, 4]
    tags,  # i32 [slots]
    slots,
    tile,
):
    """(slot, first token, one past the last token, whether the slot holds the adapter that the tile is for)."""
    slot = tl.load(tiles + tile * 4)
    tag = tl.load(tiles + tile * 4 + 1)
    first = tl.load(tiles + tile * 4 + 2)
    end = tl.load(tiles + tile * 4 + 3)
    stored = tl.load(tags + slot, mask=(slot >= 0) & (slot < slots), other=0)
    return slot, first, end, (stored == tag) & (tag != 0)


@triton.jit
def span_at(
    spans,  # i32 [slots, places, 4]
    runs,  # i32 [runs, 4]
    slot,
    place,
    places,
):
    """(first run, runs of A, runs of B, runs of the gain, runs of the bias, kind, rank) of a module."""
    span = spans + (slot.to(tl.int64) * places + place) * 4
    first = tl.load(span)
    a_runs = tl.load(span + 1)
    b_runs = tl.load(span + 2)
    word = tl.load(span + 3)
    # Runs are in the order of ranks: where A's last one ends, the rank does.
    last = tl.load(runs + (first + a_runs - 1) * 4 + 1, mask=a_runs > 0, other=0)
    rank = (last & 0xFFFF) + ((last >> 16) & 0xFFFF)
    return first, a_runs, b_runs, (word >> 4) & 0xFFF, (word >> 16) & 0xFFFF, word & 0xF, rank


@triton.jit
def run_at(
    runs,  # i32 [runs, 4]
    run,
    EVEN: tl.constexpr,  # runs begin and end at multiples of 16 columns
):
    """(bytes from the arena's start, first rank row, rank rows, first column, columns) of a run."""
    at = runs + run * 4
    address = tl.load(at).to(tl.int64) * 64
    rows = tl.load(at + 1)
    begin = tl.load(at + 2)
    length = tl.load(at + 3)
    if EVEN:  # tells the compiler, which loads wider then
        begin = begin // 16 * 16
        length = length // 16 * 16
    return address, rows & 0xFFFF, (rows >> 16) & 0xFFFF, begin, length


@triton.jit
def pick(number, of_0, of_1, of_2):
    """One of three."""
    return tl.where(number == 0, of_0, tl.where(number == 1, of_1, of_2))
