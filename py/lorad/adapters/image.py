"""An adapter as it lies in pages, packed on the host so that paging in is a plain copy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.reject import reject
from lorad.lazy import torch


class AdapterImage(NamedTuple):
    """All pages of one adapter and where its tiles lie in them."""

    layout: _core.AdapterLayout
    data: NDArray[np.uint8]
    """[pages, page_bytes]"""


def build_image(checked: CheckedAdapter, page_bytes: int) -> AdapterImage:
    """Packs `checked` into pages of `page_bytes`."""
    shapes = [
        (lora.layer, lora.module, lora.a.shape[1], lora.b.shape[0], lora.rank, lora.scale) for lora in checked.modules
    ]
    try:
        layout = _core.AdapterLayout(page_bytes, checked.element, shapes)
    except ValueError as error:
        raise reject(
            "adapter_shape", f"adapter {checked.name!r} doesn't fit pages of {page_bytes} bytes: {error}"
        ) from None
    data = np.zeros((layout.pages, page_bytes), dtype=np.uint8)
    for lora in checked.modules:
        layout.pack(data, lora.layer, lora.module, _bytes(lora.a), _bytes(lora.b))
    return AdapterImage(layout, data)


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return tensor.reshape(-1).view(torch.uint8).numpy()
