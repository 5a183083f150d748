"""An adapter's chunks as runs: blocks of weights that lie together in the arena."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.kernels.lora.table import BIASES_SHIFT, ELEMENTS, GAINS_SHIFT, LINE_BYTES

Ints = NDArray[np.int64]

PARTS = {"a": 0, "b": 1, "gain": 2, "bias": 3}
"""In the order in which a module's runs are."""
GAINS_MAX, BIASES_MAX = (1 << BIASES_SHIFT - GAINS_SHIFT) - 1, (1 << 31 - BIASES_SHIFT) - 1
"""Runs of a module's vectors, for which a span's last word has room."""
LINES_MAX = 1 << 31
"""Addresses that fit a run."""


class Chunks(NamedTuple):
    """Where an adapter lies in its pages: made once for an adapter, whatever pages it comes to lie in."""

    kind: int
    """Index into `ELEMENTS`."""
    places: Ints
    """[spans] layer · modules + module of each adapted module, ascending."""
    scales: NDArray[np.float32]
    """[spans]"""
    span: Ints
    """[chunks] index into `places`; chunks are in the order of their places in memory, as all that follow."""
    part: Ints
    page: Ints
    offset: Ints
    """Bytes from the page's start."""
    rank_begin: Ints
    rows: Ints
    begin: Ints
    length: Ints


def chunks_of(layout: _core.AdapterLayout, modules: NDArray[np.void], in_layer: int) -> Chunks:
    """`modules`: `AdapterImage.modules`; `in_layer`: modules that a layer may have."""
    order = np.lexsort((modules["module"], modules["layer"]))
    chunks = [
        (span, PARTS[part], page, offset, rank_begin, rows, begin, length)
        for span, (layer, module, _) in enumerate(modules[order].tolist())
        for page, offset, part, rank_begin, rows, begin, length in layout.chunks(layer, module)
    ]
    columns = np.array(chunks, dtype=np.int64).reshape(-1, 8).T.copy()
    places = modules["layer"][order].astype(np.int64) * in_layer + modules["module"][order]
    return Chunks(ELEMENTS.index(layout.element), places, modules["scale"][order], *columns)


class Runs(NamedTuple):
    """What a slot of the table gets."""

    runs: NDArray[np.int32]
    """[runs, 4] as in `Table.runs`."""
    spans: NDArray[np.int32]
    """[spans, 4] as in `Table.spans`, counted from the first of `runs`."""


def runs_of(chunks: Chunks, pages: NDArray[np.int32], page_bytes: int) -> Runs:
    """The runs of an adapter in `pages`: tiles that lie right behind one another, in a page or in neighbours, are one.

    OverflowError where an address or a count has no room in the table.
    """
    address = pages[chunks.page].astype(np.int64) * page_bytes + chunks.offset
    element = np.where(chunks.part < PARTS["gain"], 4 if ELEMENTS[chunks.kind] == "f32" else 2, 4)
    end = address + chunks.rows * chunks.length * element
    follows = np.zeros(len(address), dtype=bool)
    follows[1:] = (
        (chunks.span[1:] == chunks.span[:-1])
        & (chunks.part[1:] == chunks.part[:-1])
        & (chunks.begin[1:] == chunks.begin[:-1])
        & (chunks.length[1:] == chunks.length[:-1])
        & (chunks.rank_begin[1:] == chunks.rank_begin[:-1] + chunks.rows[:-1])
        & (address[1:] == end[:-1])
    )
    first = np.flatnonzero(~follows)
    rows = np.add.reduceat(chunks.rows, first)
    lines = address[first] // LINE_BYTES
    if lines.max() >= LINES_MAX:
        raise OverflowError(f"an arena of more than {LINES_MAX * LINE_BYTES >> 30} GiB")
    runs = np.stack([lines, chunks.rank_begin[first] | rows << 16, chunks.begin[first], chunks.length[first]], axis=1)
    count = np.zeros((len(chunks.places), len(PARTS)), dtype=np.int64)
    np.add.at(count, (chunks.span[first], chunks.part[first]), 1)
    a, b, gains, biases = count.T
    if gains.max() > GAINS_MAX or biases.max() > BIASES_MAX:
        raise OverflowError(f"a vector in {max(gains.max(), biases.max())} runs")
    begins = count.sum(axis=1).cumsum() - count.sum(axis=1)
    spans = np.stack([begins, a, b, chunks.kind | gains << GAINS_SHIFT | biases << BIASES_SHIFT], axis=1)
    return Runs(runs.astype(np.int32), spans.astype(np.int32))


def runs_for(slots: int, places: int, pages: int, *, rank_max: int, whole_lines: bool) -> int:
    """Runs that the adapters of `slots` slots in `pages` pages have at most, each with up to `places` modules.

    A part of a module (A, B, gain, bias) is one run, and one more for each place where it's cut:

    - between tiles where a page ends: once for each page;
    - within a tile or vector that is larger than a page: its pieces but the last take more than half a page each, so
      there are no more of these than pages, nor of last ones, nor of parts that have such tiles and another last one;
    - between tiles that don't fill their last line of 64 bytes: each tile is a run then, unless every width is a
      multiple of 4 (`whole_lines`: 8 rows of 16 bits make lines).
    """
    tiles = 0 if whole_lines else slots * places * 2 * (-(-rank_max // 8) - 1)
    return slots * places * len(PARTS) + 4 * pages + tiles
