"""Sizes that a tuner may change. `outputs` as in `matmul/tiles.py`."""

from __future__ import annotations

from typing import NamedTuple

from lorad.kernels.int4.weight import UNIT
from lorad.kernels.matmul.tiles import Tiles

FEW = 64
"""Rows up to which programs share the sum of an element of y."""

TILES = {
    2: (
        Tiles(tokens=16, outputs=64, warps=4, stages=6),
        Tiles(tokens=32, outputs=64, warps=4, stages=5),
        Tiles(tokens=64, outputs=64, warps=4, stages=4),
        Tiles(tokens=128, outputs=128, warps=8, stages=3),
    ),
    4: (
        Tiles(tokens=16, outputs=64, warps=4, stages=4),
        Tiles(tokens=64, outputs=64, warps=8, stages=3),
    ),
}
"""By bytes of an element, ascending: the first that holds all rows is taken, else the last."""

SUMMED = 1024
"""Elements of y whose parts a program adds up."""

PROGRAMS = 264
"""That a product of few rows ought to have: two for each multiprocessor of an H100."""
PART_MIN = 8
"""Units of 64 columns that a program sums at least."""


class Parts(NamedTuple):
    """How the sum along the input is cut."""

    number: int
    units: int
    """Of 64 columns, in each but the last."""


def parts_of(outputs: int, inputs: int) -> Parts:
    """Follows from the weight's shape alone: it's the order of summing, also of many rows."""
    units = -(-inputs // UNIT)
    wanted = -(-PROGRAMS // -(-outputs // 64))
    each = -(-units // max(1, min(wanted, units // PART_MIN)))
    return Parts(-(-units // each), each)


def tiles_for(tokens: int, element_bytes: int) -> Tiles:
    """For a product of so many rows."""
    fitting = (tiles for tiles in TILES[element_bytes] if tokens <= tiles.tokens)
    return next(fitting, TILES[element_bytes][-1])
