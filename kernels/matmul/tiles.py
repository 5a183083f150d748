"""Sizes that a tuner may change.

INPUTS must not look at the batch: it's the order of summing. An element of y is summed by the same instruction
whatever the tile: `outputs` must stay at 64 for each four warps, as below that a Hopper GPU takes another one.
"""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    """What a program computes."""

    tokens: int
    outputs: int
    warps: int
    stages: int
    """Blocks of x and of the weight on their way."""


INPUTS = {2: 64, 4: 32}
"""Columns of x that are multiplied at once, by bytes of an element."""

TILES = {
    2: (
        Tiles(tokens=16, outputs=64, warps=4, stages=6),
        Tiles(tokens=64, outputs=64, warps=4, stages=4),
        Tiles(tokens=128, outputs=128, warps=8, stages=3),
    ),
    4: (
        Tiles(tokens=16, outputs=64, warps=4, stages=4),
        Tiles(tokens=64, outputs=64, warps=8, stages=3),
    ),
}
"""By bytes of an element, ascending: the first that holds all rows is taken, else the last."""

BAND = 8
"""Tiles along the output whose weights stay in the L2 cache while tokens pass."""


def tiles_for(tokens: int, element_bytes: int) -> Tiles:
    """For a product of so many rows."""
    fitting = (tiles for tiles in TILES[element_bytes] if tokens <= tiles.tokens)
    return next(fitting, TILES[element_bytes][-1])
