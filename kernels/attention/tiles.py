"""Sizes that a tuner may change; each gives the same values but for rounding, and by itself the same bits for a token
whatever is beside it."""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    """What a program holds at once."""

    rows: int
    """Query tokens times heads that share K and V."""
    keys: int
    """Tokens of K and V; blocks of them begin at multiples of this, from position 0."""
    warps: int
    stages: int
    """Blocks of K and V on their way."""


BLOCK = 16
"""Query tokens of a program of `attention`."""

PREFILL = {
    (64, 16): Tiles(rows=128, keys=64, warps=4, stages=3),
    (128, 16): Tiles(rows=128, keys=64, warps=8, stages=3),
    (256, 16): Tiles(rows=64, keys=32, warps=8, stages=3),
    (64, 32): Tiles(rows=64, keys=32, warps=8, stages=2),
    (128, 32): Tiles(rows=32, keys=16, warps=8, stages=2),
    (256, 32): Tiles(rows=32, keys=16, warps=8, stages=2),
}
"""By (widest head, bits of what is multiplied)."""

DECODE = {
    (64, 16): Tiles(rows=16, keys=64, warps=4, stages=3),
    (128, 16): Tiles(rows=16, keys=64, warps=4, stages=3),
    (256, 16): Tiles(rows=16, keys=32, warps=4, stages=3),
    (64, 32): Tiles(rows=16, keys=32, warps=4, stages=2),
    (128, 32): Tiles(rows=16, keys=16, warps=4, stages=2),
    (256, 32): Tiles(rows=16, keys=16, warps=4, stages=2),
}
"""Likewise. `rows`: heads that share K and V."""


def tiles_for(table: dict[tuple[int, int], Tiles], head_dim: int, bits: int) -> Tiles:
    """Raises ValueError if heads are wider than any in `table`."""
    found = [tiles for (widest, of_bits), tiles in table.items() if head_dim <= widest and bits == of_bits]
    if not found:
        raise ValueError(f"heads of {head_dim} are too wide for attention")
    return found[0]
