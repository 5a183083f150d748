"""Random adapters in the pages of an arena under a slot table, and the same weights for the definition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from cpu_ops import TORCH, normal, raw
from lorad import _core
from lorad.adapters.image import MODULES
from lorad.kernels.lora import ref
from lorad.worker.gpu.runs import Chunks, chunks_of, runs_for
from lorad.worker.gpu.table import SlotTable

LAYERS, LAYER = 3, 1
"""All are laid out, one is used."""


class GpuAdapters:
    """Slot i holds adapter i under tag 1000 + i."""

    def __init__(self, rng: np.random.Generator, shapes: list[tuple[int, int]], page_bytes: int) -> None:
        """`shapes`: (in, out) of each module."""
        self.rng, self.shapes, self.page_bytes = rng, shapes, page_bytes
        self.weights: list[Mapping[int, ref.Weights]] = []
        """Of the layer that is used."""
        self._images: list[np.ndarray] = []
        self._chunks: list[Chunks] = []
        self.rank_max = 1

    def add(self, rank: int, element: str, modules: list[int], *, gains: bool = False, biases: bool = False) -> None:
        """An adapter of layers 0 and 1 that has those modules. Without rank: of vectors alone."""
        places = [(layer, module) for layer in (0, LAYER) for module in modules]
        shape = [(layer, module, *self.shapes[module], rank, 0.5 + module) for layer, module in places]
        having = {place for place in places if gains}, {place for place in places if biases}
        layout = _core.AdapterLayout(self.page_bytes, element, shape, gains=having[0], biases=having[1])
        image = self.rng.integers(0, 256, (layout.pages, self.page_bytes), dtype=np.uint8)
        weights = {}
        for layer, module, inputs, outputs, _, scale in shape:
            a = torch.from_numpy(normal(self.rng, rank, inputs) / inputs**0.5).to(TORCH[element])
            b = torch.from_numpy(normal(self.rng, outputs, rank) / max(rank, 1) ** 0.5).to(TORCH[element])
            gain, bias = (normal(self.rng, outputs) if (layer, module) in which else None for which in having)
            layout.pack(image, layer, module, raw(a), raw(b), gain, bias)
            if layer == LAYER:
                vectors = (None if vector is None else torch.from_numpy(vector) for vector in (gain, bias))
                weights[module] = ref.Weights(a, b, scale, *vectors)
        modules_of = np.array([(layer, module, scale) for layer, module, *_, scale in shape], dtype=MODULES)
        self._chunks.append(chunks_of(layout, modules_of, len(self.shapes)))
        self._images.append(image)
        self.weights.append(weights)
        self.rank_max = max(self.rank_max, rank)

    def build(self, *, neighbours: bool = False) -> tuple[Tensor, SlotTable]:
        """An arena u8 [pages, page_bytes] with garbage where nobody is, and the table; one slot more, that is empty."""
        flat = np.concatenate(self._images)
        place = np.arange(len(flat)) + 2 if neighbours else self.rng.permutation(len(flat) + 3)[: len(flat)]
        arena = self.rng.integers(0, 256, (len(flat) + 3, self.page_bytes), dtype=np.uint8)
        arena[place] = flat
        slots, places = len(self._images) + 1, LAYERS * len(self.shapes)
        runs_max = runs_for(slots, places, len(arena), rank_max=self.rank_max, whole_lines=False)
        table = SlotTable(slots, LAYERS, len(self.shapes), runs_max, self.page_bytes, "cpu")
        first = 0
        for slot, (image, chunks) in enumerate(zip(self._images, self._chunks, strict=True)):
            table.set(slot, 1000 + slot, chunks, place[first : first + len(image)].astype(np.int32))
            first += len(image)
        return torch.from_numpy(arena), table


Tile = tuple[int, int, int, int]
"""(slot, tag, first token, one past the last)."""


def work_list(tiles: list[Tile], room: int) -> tuple[Tensor, Tensor]:
    """`tiles` and `count` as kernels get them. In the `room` behind are such as would be seen if they were taken."""
    listed = [*tiles, *((0, 1000, 0, 1) for _ in range(room))]
    return torch.tensor(listed, dtype=torch.int32).view(-1, 4), torch.tensor([len(tiles)], dtype=torch.int32)


def tiles_of(slot: int, begin: int, tokens: int, tag: int | None = None) -> list[Tile]:
    """An adapter's tokens in tiles of 16."""
    tag = 1000 + slot if tag is None else tag
    return [(slot, tag, at, min(at + 16, begin + tokens)) for at in range(begin, begin + tokens, 16)]
