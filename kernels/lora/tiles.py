"""Block sizes of the kernels, as data: a tuner's file may stand in their place."""

from __future__ import annotations

from typing import NamedTuple

TOKENS = 16
"""Of a tile at most: the fewest rows that a matrix product of Triton takes."""


class Tiles(NamedTuple):
    """How a kernel cuts its work. `ranks` and `inputs` decide in which order is summed, so no choice of them may look
    at the batch; `outputs` may."""

    ranks: int
    """Rank rows at a time."""
    inputs: int
    """Columns of x at a time; a divisor of `SPLIT_MULTIPLE`."""
    outputs: int
    """Columns of y in a block."""
    warps: int
    stages: int


RANKS_FEW = 16
"""Ranks up to which all adapters of a server may go for the first of two table entries."""

TOKENS_FEW = 64
"""Rows of x up to which the bucket counts as a decode step: blocks of y are short, so that there are many of them."""

DEFAULTS: dict[tuple[int, bool, bool], Tiles] = {
    # (bytes of an element of x, ranks few, tokens few)
    (2, True, True): Tiles(ranks=16, inputs=128, outputs=64, warps=4, stages=4),
    (2, True, False): Tiles(ranks=16, inputs=128, outputs=128, warps=4, stages=3),
    (2, False, True): Tiles(ranks=32, inputs=128, outputs=64, warps=4, stages=3),
    (2, False, False): Tiles(ranks=32, inputs=128, outputs=128, warps=4, stages=3),
    (4, True, True): Tiles(ranks=16, inputs=64, outputs=64, warps=4, stages=2),
    (4, True, False): Tiles(ranks=16, inputs=64, outputs=128, warps=4, stages=2),
    (4, False, True): Tiles(ranks=32, inputs=64, outputs=64, warps=4, stages=2),
    (4, False, False): Tiles(ranks=32, inputs=64, outputs=128, warps=4, stages=2),
}


def tiles_for(element_bytes: int, rank_max: int, tokens: int) -> Tiles:
    """For x of such elements, adapters of such ranks at most, a bucket of so many tokens."""
    return DEFAULTS[element_bytes, rank_max <= RANKS_FEW, tokens <= TOKENS_FEW]


EMBEDDING: dict[int, Tiles] = {
    # by bytes of an element of the hidden states; nothing is shrunk
    2: Tiles(ranks=16, inputs=0, outputs=128, warps=4, stages=3),
    4: Tiles(ranks=16, inputs=0, outputs=128, warps=4, stages=2),
}

SPLIT_INPUTS = 512
"""Columns of x that one block sums over where that doesn't make too many partial sums."""
SPLIT_MULTIPLE = 128
SPLITS_MAX = 16


class Split(NamedTuple):
    """How the sum over the input is divided among blocks."""

    blocks: int
    columns: int
    """Of each but the last."""


def split_of(inputs: int) -> Split:
    """Follows from the input's width alone, so that sums don't depend on the batch."""
    wanted = min(-(-inputs // SPLIT_INPUTS), SPLITS_MAX)
    columns = -(-inputs // (wanted * SPLIT_MULTIPLE)) * SPLIT_MULTIPLE
    return Split(-(-inputs // columns), columns)


FUSED_TOKENS = 64
FUSED_INPUTS = 1024


def fused_pays(tokens: int, inputs: int) -> bool:
    """Whether one launch that shrinks again for each block of columns is expected to be faster than two.

    It saves a launch (2 to 3 µs in a graph), and costs each block `rank · inputs` weights, read one after the other at
    what one multiprocessor gets from the cache, some 50 bytes a ns: at rank 16 and 1024 inputs in 16 bits 0.7 µs. Wider
    inputs are better split among blocks, and with many tokens launches don't count.
    """
    return tokens <= FUSED_TOKENS and inputs <= FUSED_INPUTS
