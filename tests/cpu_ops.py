"""What the tests of CPU operators share: arrays that begin as NaN, tolerances, random adapters in pages."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from lorad import _core
from lorad.kernels.lora import ref as lora_ref

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
RANKS = [1, 2, 3, 7, 8, 9, 16, 31, 64, 128, 256]


def nan(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, dtype=np.float32)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def close(got: np.ndarray, wanted: torch.Tensor, tolerance: float = 2e-5) -> None:
    size = float(np.nanmax(np.abs(wanted.numpy()), initial=1e-30))
    np.testing.assert_allclose(got, wanted.numpy(), rtol=tolerance, atol=tolerance * size)


class Adapters:
    """Random adapters in a small arena of small pages, and the same weights for the definition."""

    def __init__(self, rng: np.random.Generator, shapes: list[tuple[int, int]], page_bytes: int, count: int) -> None:
        """`shapes`: (in, out) of each module; layer 1 of 3 is the one used."""
        self.rng, self.shapes, self.page_bytes = rng, shapes, page_bytes
        self.table = _core.AdapterTable(count, page_bytes, 3, len(shapes))
        self.pages: list[np.ndarray] = []
        self.weights: list[Mapping[int, lora_ref.Weights]] = []
        self.placed: list[tuple[int, _core.AdapterLayout]] = []

    def add(self, rank: int, element: str, modules: list[int]) -> None:
        """Some modules get vectors too, some adapters have nothing else."""
        places = [(layer, m) for layer in (0, 1) for m in modules or [0] if layer or m]
        if not any(layer == 1 for layer, _ in places):
            places.append((1, 0))
        gains, biases = ({place for place in places if self.rng.random() < 0.4} for _ in range(2))
        if self.rng.random() < 0.1:
            rank, gains = 0, set(places)
        shape = [(layer, m, *self.shapes[m], rank, 0.5 + m) for layer, m in places]
        layout = _core.AdapterLayout(self.page_bytes, element, shape, gains=gains, biases=biases)
        image = self.rng.integers(0, 256, (layout.pages, self.page_bytes), dtype=np.uint8)
        weights = {}
        for layer, module, inputs, outputs, _, scale in shape:
            a = torch.from_numpy(normal(self.rng, rank, inputs) / inputs**0.5).to(TORCH[element])
            b = torch.from_numpy(normal(self.rng, outputs, rank) / max(rank, 1) ** 0.5).to(TORCH[element])
            gain, bias = (normal(self.rng, outputs) if (layer, module) in which else None for which in (gains, biases))
            layout.pack(image, layer, module, raw(a), raw(b), gain, bias)
            if layer == 1:
                vectors = (None if vector is None else torch.from_numpy(vector) for vector in (gain, bias))
                weights[module] = lora_ref.Weights(a, b, scale, *vectors)
        self.placed.append((sum(len(page) for page in self.pages), layout))
        self.pages.append(image)
        self.weights.append(weights)

    def build(self) -> np.ndarray:
        """Scatters the pages over an arena and fills the table; slot i holds adapter i under tag 1000 + i."""
        flat = np.concatenate(self.pages)
        place = self.rng.permutation(len(flat) + 3)[: len(flat)].astype(np.int32)
        arena = self.rng.integers(0, 256, (len(flat) + 3, self.page_bytes), dtype=np.uint8)
        arena[place] = flat
        for slot, (first, layout) in enumerate(self.placed):
            self.table.set(slot, 1000 + slot, layout, place[first : first + layout.pages])
        return arena


def run_lora(y, x, arena, adapters, modules, offsets, groups, *, exact=False) -> list[int]:
    return _core.lora(y, x, delta_of(arena, adapters, modules, offsets, groups, exact=exact))


def delta_of(arena, adapters, modules, offsets, groups, *, exact=False) -> _core.Delta:
    columns = [np.array(column, dtype=np.int32) for column in zip(*groups, strict=True)]
    return _core.StepAdapters(arena, adapters.table, *columns, exact=exact), 1, modules, offsets
