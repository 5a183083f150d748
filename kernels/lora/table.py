"""The device table: which adapter lies where. Kernels read addresses from here, so nothing of an adapter is baked into
a captured graph."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

LINE_BYTES = 64
"""Unit of addresses: every chunk of an adapter begins at a multiple of it."""

ELEMENTS = ("f32", "f16", "bf16")
"""Number types of an adapter's weights, by their number in `Table.spans`."""

GAINS_SHIFT, BIASES_SHIFT = 4, 16
"""Of the counts in the last word of a span."""

EVEN_PAGE_BYTES = 512
"""From pages of this size on, runs over a width that is a multiple of 16 begin and end at such multiples: a page holds
16 columns of 8 rows in f32, and the layout cuts pieces at multiples of 16 columns then."""


class Table(NamedTuple):
    """Tensors at addresses that never change; what is in them changes between steps."""

    tags: Tensor
    """i32 [slots]: low 32 bits of the generation in the slot; 0: empty. A tile with another tag gets NaN."""
    spans: Tensor
    """i32 [slots, layers · modules, 4]: (first run, runs of A, runs of B, kind) of each module; all 0: not adapted.

    Runs of A come first, then those of B, of the gain, of the bias. `kind`: number type of A and B (`ELEMENTS`) | runs
    of the gain << 4 | runs of the bias << 16.
    """
    scales: Tensor
    """f32 [slots, layers · modules]: what comes between A and B."""
    runs: Tensor
    """i32 [runs, 4]: (address, rank_begin | rows << 16, begin, len) of a contiguous block [rows, len] in the arena.

    The address is in units of 64 bytes from the arena's start. A's rows are rank rows over columns `begin` to `begin +
    len` of the input; B's (transposed) likewise over the output; gain and bias are f32 [1, len], over the output. A run
    may have any number of rows: tiles that lie behind one another are one.
    """
    modules: int
    """In a layer."""
