"""Adapters on their way to a device: images kept in pinned memory, copied on a stream beside the steps."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from lorad.adapters.image import AdapterImage
from lorad.worker.page_ins import runs
from lorad.worker.plan import Ints


class PinnedImages:
    """Images of the adapters that were used last, in pinned memory: what a device copies at the link's full rate.

    The images' files stay: what is dropped here is read from them again.
    """

    def __init__(
        self, image_of: Callable[[int], AdapterImage], page_bytes: int, bytes_max: int, *, pinned: bool
    ) -> None:
        """`bytes_max`: of all images; one that alone is larger is kept until the next comes."""
        self._image_of = image_of
        self._page_bytes = page_bytes
        self._bytes_max = bytes_max
        self._pinned = pinned
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Tensor] = OrderedDict()
        self.bytes = 0

    def get(self, adapter: int) -> Tensor:
        """u8 [pages, page_bytes]."""
        with self._lock:
            found = self._kept.get(adapter)
            if found is not None:
                self._kept.move_to_end(adapter)
                return found
        image = self._image_of(adapter)
        found = torch.empty((image.layout.pages, self._page_bytes), dtype=torch.uint8, pin_memory=self._pinned)
        image.read(0, found.numpy())
        with self._lock:
            self._kept[adapter] = found
            self.bytes += found.nbytes
            while self.bytes > self._bytes_max and len(self._kept) > 1:
                self.bytes -= self._kept.popitem(last=False)[1].nbytes
        return found

    def drop(self, adapter: int) -> None:
        """Forgets an adapter's image."""
        with self._lock:
            found = self._kept.pop(adapter, None)
            self.bytes -= 0 if found is None else found.nbytes


class DeviceCopy:
    """Copies images to pages of a device's arena, on a stream of its own: one copy for each run of neighbouring pages.

    The pages are the adapter's alone until the core hears of the end, and whoever had them before has been computed:
    the core gives pages away at the commit of the last plan that has their row. So the streams needn't wait for one
    another.
    """

    def __init__(self, arena: Tensor, images: PinnedImages, on_end: Callable[[], None] = lambda: None) -> None:
        """`arena`: u8 [pages, page_bytes]. `on_end`: called after each copy, also a failed one, as a part of it."""
        self._on_end = on_end
        self._arena = arena
        self._images = images
        self._stream = torch.cuda.Stream(arena.device) if arena.is_cuda else None  # type: ignore[no-untyped-call]

    def __call__(self, adapter: int, pages: Ints) -> int:
        try:
            return self._copy(adapter, pages)
        finally:
            self._on_end()

    def _copy(self, adapter: int, pages: Ints) -> int:
        image = self._images.get(adapter)
        with torch.cuda.stream(self._stream):
            for begin, end, first in runs(pages):
                self._arena[first : first + end - begin].copy_(image[begin:end], non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()  # this thread has nothing else to do
        return int(pages.size * self._arena.shape[1])
