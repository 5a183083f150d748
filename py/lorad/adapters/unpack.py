"""`unpack`: from an adapter's pages back to its matrices, bit for bit.

Whatever became of the files that it was loaded from, the pages are what is served.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lorad.adapters.checked import ModuleLora
from lorad.adapters.image import AdapterImage, LayoutSpec
from lorad.lazy import torch
from lorad.models.config import ModelConfig
from lorad.models.elements import dtype_of, element_of


class Outline(NamedTuple):
    """A module of an image, before any page is read."""

    layer: int
    module: int
    """Index into `ModelConfig.adaptable()`."""
    rank: int
    has_gain: bool
    has_bias: bool


def outlines(image: AdapterImage) -> Iterator[Outline]:
    """The modules of an image, in the order of (layer, module)."""
    for layer, module, _ in image.modules.tolist():
        chunks = image.layout.chunks(layer, module)
        rank = max((first + rows for _, _, part, first, rows, _, _ in chunks if part == "a"), default=0)
        parts = {part for _, _, part, *_ in chunks}
        yield Outline(layer, module, rank, "gain" in parts, "bias" in parts)


def spec_of_image(image: AdapterImage, config: ModelConfig) -> LayoutSpec:
    """What the layout of an adapter of this base follows from."""
    adaptable, found, scales = config.adaptable(), list(outlines(image)), image.modules["scale"].tolist()
    return LayoutSpec(
        element_of(dtype_of(image.layout.element)),
        [
            (one.layer, one.module, *adaptable[one.module][1:], one.rank, scale)
            for one, scale in zip(found, scales, strict=True)
        ],
        [(one.layer, one.module) for one in found if one.has_gain],
        [(one.layer, one.module) for one in found if one.has_bias],
    )


def unpack(image: AdapterImage, config: ModelConfig) -> Iterator[ModuleLora]:
    """The modules of an image of an adapter of this base, as they were packed. OSError if the disk fails."""
    layout, adaptable = image.layout, config.adaptable()
    data = np.empty((layout.pages, layout.page_bytes), dtype=np.uint8)
    image.read(0, data)
    element = dtype_of(layout.element)
    for (layer, module, rank, *_), scale in zip(outlines(image), image.modules["scale"].tolist(), strict=True):
        width_in, width_out = adaptable[module].in_features, adaptable[module].out_features
        a, b = torch.empty((rank, width_in), dtype=element), torch.empty((rank, width_out), dtype=element)
        vectors: dict[str, torch.Tensor] = {}
        for page, offset, part, first, rows, begin, length in layout.chunks(layer, module):
            dtype = element if part in ("a", "b") else torch.float32
            raw = data[page, offset : offset + rows * length * dtype.itemsize]
            tile = torch.from_numpy(raw).view(dtype).reshape(rows, length)
            if part in ("a", "b"):
                (a if part == "a" else b)[first : first + rows, begin : begin + length] = tile
            else:
                vectors.setdefault(part, torch.empty(width_out))[begin : begin + length] = tile[0]
        yield ModuleLora(
            layer, module, rank, scale, a, b.T.contiguous(), gain=vectors.get("gain"), bias=vectors.get("bias")
        )
