"""A check of the load itself: do the pages say what the file says?

A few random vectors go through one module of each kind, once by the tiles as they lie in the pages, once by the
matrices that were read. A packing that transposes, permutes or misplaces gives another result; nothing else that the
load does could tell it from the right one. One layer of each kind is a small part of the file, so it costs little.
"""

from __future__ import annotations

import numpy as np

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.adapters.image import AdapterImage
from lorad.adapters.reject import reject
from lorad.lazy import torch

TOKENS = 4
TOLERANCE = 1e-9
"""Of the largest result. Sums are of f64, so what differs is their order only."""


def check_parity(checked: CheckedAdapter, image: AdapterImage) -> None:
    """Refuses an image that computes something else than its adapter."""
    kinds: dict[int, list[ModuleLora]] = {}
    for lora in checked.modules:
        kinds.setdefault(lora.module, []).append(lora)
    generator = torch.Generator().manual_seed(checked.tag)
    for loras in kinds.values():
        # Any layer is as good; by the tag it isn't always the same.
        lora = loras[checked.tag % len(loras)]
        x = torch.randn((TOKENS, lora.a.shape[1]), generator=generator, dtype=torch.float64)
        wanted = (x @ lora.a.double().T) @ lora.b.double().T
        off = float((_by_tiles(x, lora, image) - wanted).abs().max())
        if not off <= TOLERANCE * float(wanted.abs().max()):
            raise reject(
                "adapter_parity",
                f"adapter {checked.name!r}: its pages give another result than its file in layer {lora.layer}, module "
                f"{lora.module}, by {off:g}: a fault of lorad or of the disk",
            )


def _by_tiles(x: torch.Tensor, lora: ModuleLora, image: AdapterImage) -> torch.Tensor:
    """x [tokens, in] times A and B as they lie in the pages, f64 [tokens, out]."""
    chunks = image.layout.chunks(lora.layer, lora.module)
    pages = {chunk[0]: np.empty((1, image.layout.page_bytes), np.uint8) for chunk in chunks}
    for page, data in pages.items():
        image.read(page, data)
    between = torch.zeros((len(x), lora.rank), dtype=torch.float64)
    y = torch.zeros((len(x), lora.b.shape[0]), dtype=torch.float64)
    # All of A before B, which wants its sums.
    for page, offset, part, first, rows, begin, length in sorted(chunks, key=lambda chunk: chunk[2]):
        raw = pages[page][0, offset : offset + rows * length * lora.a.element_size()]
        tile = torch.from_numpy(raw).view(lora.a.dtype).reshape(rows, length).double()
        if part == "a":
            between[:, first : first + rows] += x[:, begin : begin + length] @ tile.T
        else:
            y[:, begin : begin + length] += between[:, first : first + rows] @ tile
    return y
