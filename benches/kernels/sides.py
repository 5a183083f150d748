"""What the kernels' benches share: random adapters in an arena, sides timed by turns, the memory's rate."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from lorad import _core

PAGE_BYTES = 368640
"""A page of SmolLM2-135M: 16 tokens, 30 layers, 3 KV heads of 64, 16 bits."""

MODULES = ((576, 576), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576))
"""Inputs and outputs of its linear modules; CALLS are those that share their input."""
CALLS = ((0, 1, 2), (3,), (4, 5), (6,))

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def time_interleaved(sides: dict[str, Callable[[int], None]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median and spread of each side, in µs a call; the argument counts up, to rotate weights."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    counts = dict.fromkeys(sides, 1)
    for name, side in sides.items():
        begin = time.perf_counter()
        side(0)
        once = time.perf_counter() - begin
        counts[name] = max(1, min(200, int(0.02 / max(once, 1e-6))))
    index = itertools.count()
    for _ in range(repeats):
        for name, side in sides.items():
            begin = time.perf_counter()
            for _ in range(counts[name]):
                side(next(index))
            times[name].append((time.perf_counter() - begin) / counts[name] * 1e6)
    found = {}
    for name, values in times.items():
        deciles = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else [values[0]]
        found[name] = (statistics.median(values), (deciles[-1] - deciles[0]) / 2)
    return found


def bandwidth() -> float:
    """GB/s of reading memory with torch's threads: the ceiling of everything that isn't in cache."""
    block = torch.zeros(256 << 18)
    best = 0.0
    for _ in range(5):
        begin = time.perf_counter()
        block.sum()
        best = max(best, block.numel() * 4 / (time.perf_counter() - begin) / 1e9)
    return best


class Adapters:
    """Adapters of one rank on all modules of a few layers, scattered over an arena."""

    def __init__(self, ranks: Sequence[int], layers: int) -> None:
        self.layers = layers
        layouts = [
            _core.AdapterLayout(
                PAGE_BYTES,
                "bf16",
                [(layer, m, i, o, rank, 1.0) for layer in range(layers) for m, (i, o) in enumerate(MODULES)],
            )
            for rank in ranks
        ]
        pages = sum(layout.pages for layout in layouts)
        # Exponents near 1: random bits would be denormal or infinite.
        values = torch.from_numpy(normal(pages * PAGE_BYTES // 2)).mul_(0.05).to(torch.bfloat16)
        self.arena = values.view(torch.uint8).numpy().reshape(pages, PAGE_BYTES).copy()
        self.table = _core.AdapterTable(len(ranks), PAGE_BYTES, layers, len(MODULES))
        place = rng.permutation(pages).astype(np.int32)
        at = 0
        for slot, layout in enumerate(layouts):
            self.table.set(slot, slot + 1, layout, place[at : at + layout.pages].copy())
            at += layout.pages
        self.bytes = sum(layout.weight_bytes for layout in layouts)


class LoraLayers:
    """A step of groups of so many tokens, one group for each rank: `layer(i)` adds a layer's seven modules."""

    def __init__(self, ranks: Sequence[int], tokens: int, layers: int) -> None:
        self.adapters = Adapters(ranks, layers)
        n = len(ranks) * tokens
        self._x = {i: normal(n, i) for i in (576, 1536)}
        self._y = {calls: np.zeros((n, sum(MODULES[m][1] for m in calls)), dtype=np.float32) for calls in CALLS}
        self._offsets = {calls: [sum(MODULES[m][1] for m in calls[:j]) for j in range(len(calls))] for calls in CALLS}
        slots = np.arange(len(ranks), dtype=np.int32)
        groups = (slots, slots + 1, slots * tokens, (slots + 1) * tokens)
        self._step = _core.StepAdapters(self.adapters.arena, self.adapters.table, *groups)

    @property
    def bytes(self) -> float:
        """Bytes of A and B of a layer."""
        return self.adapters.bytes / self.adapters.layers

    def layer(self, i: int) -> None:
        """Adds layer `i`, counted around."""
        index = i % self.adapters.layers
        for calls in CALLS:
            _core.lora(self._y[calls], self._x[MODULES[calls[0]][0]], (self._step, index, calls, self._offsets[calls]))
