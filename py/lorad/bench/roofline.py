"""How far a decode step is from what its bytes take: everything that it reads once, over the memory's measured rate."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch

BYTES = 256 << 20
"""Well above the last cache."""
ROUNDS = 5


class Reads(NamedTuple):
    """What a decode step reads."""

    weights: int
    adapters: int
    kv: int

    @property
    def bytes(self) -> int:
        """In all."""
        return sum(self)


def bandwidth() -> float:
    """Bytes a second that all threads read together, the best of some rounds."""
    values = torch.from_numpy(np.ones(BYTES // 4, dtype=np.float32))
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        values.sum()
        best = min(best, time.perf_counter() - begin)
    return BYTES / best
