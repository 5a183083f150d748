"""A check of the load itself: do the pages say what the file says?

A few random vectors go through one module of each kind, once by the tiles as they lie in the pages, once by the
matrices that were read. A packing that transposes, permutes or misplaces gives another result; nothing else that the
load does could tell it from the right one. One layer of each kind is a small part of the file, so it costs little.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.adapters.image import AdapterImage
from lorad.adapters.reject import reject
from lorad.lazy import torch

TOKENS = 4
TOLERANCE = 1e-9
"""Of the largest result, or of the terms that it's made of. Sums are of f64, so what differs is their order only."""


def check_parity(checked: CheckedAdapter, image: AdapterImage) -> None:
    """Refuses an image that computes something else than its adapter."""
    generator = torch.Generator().manual_seed(checked.tag)
    pages = _Pages(image)
    for lora in _one_of_each(checked):
        x = torch.randn((TOKENS, lora.a.shape[1]), generator=generator, dtype=torch.float64)
        wanted = _by_matrices(x, lora)
        off = float((_by_tiles(x, lora, image.layout, pages) - wanted).abs().max())
        if off <= TOLERANCE * float(wanted.abs().max()):
            continue
        # Where terms cancel, what is left of them is their rounding.
        if not off <= TOLERANCE * float(_by_matrices(x.abs(), _sizes(lora)).max()):
            raise reject(
                "adapter_parity",
                f"adapter {checked.name!r}: its pages give another result than its file in layer {lora.layer}, module "
                f"{lora.module}, by {off:g}: a fault of lorad or of the disk",
            )


def _by_matrices(x: torch.Tensor, lora: ModuleLora) -> torch.Tensor:
    """x [tokens, in] through A, B, gain and bias as they were read, f64 [tokens, out]."""
    y = (x @ lora.a.double().T) @ lora.b.double().T
    y = y if lora.gain is None else y * lora.gain.double()
    return y if lora.bias is None else y + lora.bias.double()


def _sizes(lora: ModuleLora) -> ModuleLora:
    """The module with all values' sizes: nothing in its sums cancels."""
    gain, bias = (None if vector is None else vector.abs() for vector in (lora.gain, lora.bias))
    return lora._replace(a=lora.a.abs(), b=lora.b.abs(), gain=gain, bias=bias)


def _one_of_each(checked: CheckedAdapter) -> list[ModuleLora]:
    """A module of each kind, of one layer where it has all: its pages lie together."""
    first = checked.modules[checked.tag % len(checked.modules)].layer  # any is as good; by the tag not always the same
    kinds: dict[int, ModuleLora] = {}
    for lora in sorted(checked.modules, key=lambda lora: lora.layer != first):
        kinds.setdefault(lora.module, lora)
    return list(kinds.values())


class _Pages(dict[int, NDArray[np.uint8]]):
    """Pages of an image, each read once."""

    def __init__(self, image: AdapterImage) -> None:
        self._image = image

    def __missing__(self, page: int) -> NDArray[np.uint8]:
        data = np.empty(self._image.layout.page_bytes, np.uint8)
        self._image.read(page, data)
        self[page] = data
        return data


def _by_tiles(x: torch.Tensor, lora: ModuleLora, layout: _core.AdapterLayout, pages: _Pages) -> torch.Tensor:
    """x [tokens, in] through A, B, gain and bias as they lie in the pages, f64 [tokens, out]."""
    between = torch.zeros((len(x), lora.rank), dtype=torch.float64)
    y = torch.zeros((len(x), lora.b.shape[0]), dtype=torch.float64)
    # All of A before B, which wants its sums; vectors at last.
    for page, offset, part, first, rows, begin, length in sorted(
        layout.chunks(lora.layer, lora.module), key=lambda chunk: _ORDER.index(chunk[2])
    ):
        dtype = lora.a.dtype if part in ("a", "b") else torch.float32
        raw = pages[page][offset : offset + rows * length * dtype.itemsize]
        tile = torch.from_numpy(raw).view(dtype).reshape(rows, length).double()
        if part == "gain":
            y[:, begin : begin + length] *= tile[0]
        elif part == "bias":
            y[:, begin : begin + length] += tile[0]
        elif part == "a":
            between[:, first : first + rows] += x[:, begin : begin + length] @ tile.T
        elif part == "b":
            y[:, begin : begin + length] += between[:, first : first + rows] @ tile
    return y


_ORDER = ("a", "b", "gain", "bias")
"""In which the parts of a module are applied."""
