"""Paging an adapter in, beside a copy of as many bytes: warm (its image in the system's cache), cold (on the disk)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from lorad.adapters.image import AdapterImage, build_image
from lorad.adapters.load import load_adapter
from lorad.bench.adapters import write_random
from lorad.models.open import open_model
from lorad.worker.ops import PageGeometry

RANKS = (8, 16, 64)
POOL_PAGES = 2048
"""More than the CPU's caches hold, so that each turn meets pages that aren't near."""


def measure_pages(model: Path, folder: Path, repeats: int) -> dict[str, dict[str, list[float]]]:
    """ms of each repeat, by rank: `memcpy`, `warm`, `cold`."""
    weights = open_model(model)
    page_bytes = PageGeometry.of(weights.config, 16, "f16").page_bytes
    arena = np.zeros((POOL_PAGES, page_bytes), dtype=np.uint8)
    arena.fill(1)
    found = {}
    for rank in RANKS:
        path = write_random(folder / f"r{rank}", weights.config, rank, rank)
        image = build_image(load_adapter("x", path, weights.config, weights.digest), page_bytes)
        pages = image.layout.pages
        source = np.random.default_rng(0).integers(0, 255, (pages, page_bytes), dtype=np.uint8)
        times: dict[str, list[float]] = {"memcpy": [], "warm": [], "cold": []}
        at = 0
        for repeat in range(repeats + 1):
            for kind in ("memcpy", "warm", "cold"):
                at = at + pages if at + 2 * pages <= POOL_PAGES else 0
                to = arena[at : at + pages]
                if kind == "cold":
                    _drop(image)
                began = time.perf_counter()
                if kind == "memcpy":
                    np.copyto(to, source)
                else:
                    image.read(0, to)
                took = (time.perf_counter() - began) * 1e3
                if repeat:
                    times[kind].append(took)
            image.read(0, arena[:pages])  # warm again
        found[f"rank {rank}, {pages} pages"] = times
    return found


def _drop(image: AdapterImage) -> None:
    """Takes the image out of the system's cache."""
    file = image._file.fileno()
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
