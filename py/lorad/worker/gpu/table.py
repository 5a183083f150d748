"""The device table as the host writes it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lorad.kernels.lora.table import Table
from lorad.worker.gpu.ranges import Ranges
from lorad.worker.gpu.runs import Chunks, runs_of


class RunsFull(RuntimeError):
    """There are fewer free runs than an adapter needs."""


class _Mirrored(NamedTuple):
    """A tensor of the device and what was last written to it."""

    device: Tensor
    host: Tensor
    """Pinned where the device is another."""

    def write(self, begin: int, length: int) -> None:
        """Copies that many rows, in the order of the stream."""
        self.device[begin : begin + length].copy_(self.host[begin : begin + length], non_blocking=True)


def _mirrored(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> _Mirrored:
    host = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
    return _Mirrored(torch.zeros(shape, dtype=dtype, device=device), host)


class SlotTable:
    """Owns the table's tensors. A slot's runs are one contiguous range of all runs.

    What is written is copied from the host in the order of the current stream: kernels that were started before see
    what was there, those after it what is new. The copy may run later than the call, so a slot may be written again
    only when no step that uses it is on its way.
    """

    def __init__(
        self, slots: int, layers: int, modules: int, runs_max: int, page_bytes: int, device: torch.device | str
    ) -> None:
        """`runs_max`: `runs_for` tells what is enough."""
        device = torch.device(device)
        self.page_bytes = page_bytes
        self._device = device
        self._tags = _mirrored((slots,), torch.int32, device)
        self._spans = _mirrored((slots, layers * modules, 4), torch.int32, device)
        self._scales = _mirrored((slots, layers * modules), torch.float32, device)
        self._runs = _mirrored((runs_max, 4), torch.int32, device)
        self._ranges = Ranges(runs_max)
        self._held: dict[int, tuple[int, int]] = {}
        # (first run, runs) of each slot that isn't empty.
        self.table = Table(self._tags.device, self._spans.device, self._scales.device, self._runs.device, modules)

    @property
    def runs_free(self) -> int:
        """Of `runs_max`."""
        return self._ranges.free

    def set(self, slot: int, tag: int, chunks: Chunks, pages: NDArray[np.int32]) -> None:
        """Puts an adapter that lies in `pages` into an empty slot under `tag`, which isn't 0.

        RunsFull, ValueError, OverflowError: nothing has changed.
        """
        if not 0 <= slot < len(self._tags.host):
            raise ValueError(f"slot {slot} of {len(self._tags.host)}")
        if slot in self._held:
            raise ValueError(f"slot {slot} isn't empty")
        if tag == 0:
            raise ValueError("tag 0 means an empty slot")
        if chunks.places.max() >= self._spans.host.shape[1]:
            raise ValueError(f"place {chunks.places.max()} of {self._spans.host.shape[1]}")
        runs, spans = runs_of(chunks, pages, self.page_bytes)
        first = self._take(len(runs))
        self._held[slot] = first, len(runs)
        self._runs.host.numpy()[first : first + len(runs)] = runs
        spans[:, 0] += first
        for mirror, values in ((self._spans, spans), (self._scales, chunks.scales)):
            row = mirror.host.numpy()[slot]
            row[:] = 0
            row[chunks.places] = values
        self._runs.write(first, len(runs))
        self._spans.write(slot, 1)
        self._scales.write(slot, 1)
        self._write_tag(slot, tag)

    def clear(self, slot: int) -> None:
        """Empties a slot; one that is empty stays so."""
        self._write_tag(slot, 0)
        if slot in self._held:
            self._ranges.give(*self._held.pop(slot))

    def _write_tag(self, slot: int, tag: int) -> None:
        self._tags.host.numpy().view(np.uint32)[slot] = tag & 0xFFFFFFFF
        self._tags.write(slot, 1)

    def _take(self, count: int) -> int:
        if count > self._ranges.free:
            raise RunsFull(f"an adapter of {count} runs, {self._ranges.free} of {len(self._runs.host)} are free")
        first = self._ranges.take(count)
        if first is None:
            self._join()
            first = self._ranges.take(count)
            assert first is not None
        return first

    def _join(self) -> None:
        """Moves all runs to the front, so that the free ones are one range. Rare; waits for the copies on their way,
        which read what is moved."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        runs, spans = self._runs.host.numpy(), self._spans.host.numpy()
        self._ranges = Ranges(len(runs))
        for slot, (begin, length) in sorted(self._held.items(), key=lambda item: item[1]):
            to = self._ranges.take(length)
            assert to is not None and to <= begin
            runs[to : to + length] = runs[begin : begin + length].copy()
            spans[slot, spans[slot].any(axis=1), 0] -= begin - to
            self._held[slot] = to, length
        self._runs.write(0, len(runs))
        self._spans.write(0, len(spans))
