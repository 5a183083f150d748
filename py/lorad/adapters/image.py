"""An adapter as it lies in pages, packed so that paging in is a plain copy."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.reject import reject
from lorad.lazy import torch
from lorad.models.elements import Element
from lorad.models.files import data_folder

FOLDER = "images"
"""Of the data folder."""

MODULES = np.dtype([("layer", np.int32), ("module", np.int32), ("scale", np.float32)])
"""What the layout doesn't tell of a module; a few bytes, as there may be thousands of images."""


class AdapterImage:
    """All pages of one adapter and where its tiles lie in them.

    The pages are in a file without a name, which ends with this object, however the process does. So a thousand
    registered adapters take no memory of this process: the system's cache has those that are used, as far as it has
    room, and the disk has all.
    """

    def __init__(
        self, layout: _core.AdapterLayout, page_bytes: int, file: IO[bytes], modules: NDArray[np.void], rank: int = 0
    ) -> None:
        """`file` holds the pages, one after the other, of all ranks in turn; `rank`: whose part this is. `modules`: of
        `MODULES`, in the pages' order."""
        self.layout = layout
        self.modules = modules
        self._page_bytes = page_bytes
        self._file = file
        self._first = rank * layout.pages

    def of_rank(self, rank: int) -> AdapterImage:
        """The part of another rank, in the same file."""
        return AdapterImage(self.layout, self._page_bytes, self._file, self.modules, rank)

    @property
    def descriptor(self) -> int:
        """The open file that holds the pages."""
        return self._file.fileno()

    def read(self, first: int, to: NDArray[np.uint8]) -> None:
        """Copies pages from `first` on to `to`, u8 [pages, page_bytes], contiguous. OSError if the disk fails."""
        left, at = to.data.cast("B"), (self._first + first) * self._page_bytes
        while left:
            count = os.preadv(self._file.fileno(), [left], at)
            if count == 0:
                raise OSError(f"an adapter's image ends {len(left)} bytes early")
            left, at = left[count:], at + count


class LayoutSpec(NamedTuple):
    """All that an adapter's layout follows from, but for the size of pages."""

    element: Element
    shapes: list[tuple[int, int, int, int, int, float]]
    """Of each module: layer, module, in, out, rank, scale."""
    gains: list[tuple[int, int]]
    """(layer, module) of those that have one."""
    biases: list[tuple[int, int]]


def spec_of(checked: CheckedAdapter) -> LayoutSpec:
    """What the layout of `checked` follows from."""
    modules = checked.modules
    return LayoutSpec(
        checked.element,
        [(lora.layer, lora.module, lora.a.shape[1], lora.b.shape[0], lora.rank, lora.scale) for lora in modules],
        [(lora.layer, lora.module) for lora in modules if lora.gain is not None],
        [(lora.layer, lora.module) for lora in modules if lora.bias is not None],
    )


def make_layout(spec: LayoutSpec, page_bytes: int) -> _core.AdapterLayout:
    """How it lies in pages of `page_bytes`."""
    try:
        return _core.AdapterLayout(
            page_bytes, spec.element, spec.shapes, gains=set(spec.gains), biases=set(spec.biases)
        )
    except ValueError as error:
        raise reject("adapter_shape", f"it doesn't fit pages of {page_bytes} bytes: {error}") from None


def build_image(checked: CheckedAdapter, page_bytes: int, others: Sequence[CheckedAdapter] = ()) -> AdapterImage:
    """Packs `checked` into pages of `page_bytes`, and behind it the parts of other ranks, which are shaped alike."""
    layout = make_layout(spec_of(checked), page_bytes)
    data = np.zeros((1 + len(others), layout.pages, page_bytes), dtype=np.uint8)
    for pages, part in zip(data, (checked, *others), strict=True):
        for lora in part.modules:
            vectors = (None if vector is None else vector.numpy() for vector in (lora.gain, lora.bias))
            layout.pack(pages, lora.layer, lora.module, _bytes(lora.a), _bytes(lora.b), *vectors)
    folder = data_folder() / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - it lives as long as the image
        left = data.data.cast("B")
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        raise reject(
            "adapter_image",
            f"adapter {checked.name!r}: its {data.nbytes} bytes can't be kept under {folder}: {error.strerror}",
        ) from None
    modules = np.array([(lora.layer, lora.module, lora.scale) for lora in checked.modules], dtype=MODULES)
    return AdapterImage(layout, page_bytes, file, modules)


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return tensor.reshape(-1).view(torch.uint8).numpy()
