"""Sums and joins between ranks: all that they exchange within a step."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from lorad.kernels.launch import launch

SECONDS_MAX = 120.0
"""How long a rank waits for the others in one of these. Kernels are compiled in the first."""


class Collective(Protocol):
    """Of all ranks, which call the same in the same order with equal shapes."""

    world: int

    def reduce(self, y: Tensor) -> None:
        """y [n, width] becomes the sum of all ranks'."""

    def gather(self, whole: Tensor, own: Tensor) -> None:
        """Writes whole [n, width]: the ranks' `own` [n, columns] side by side, as far as they have room."""

    def close(self) -> None: ...


class Alone:
    """Of one rank: sums are complete, and `whole` is `own`."""

    world = 1

    def reduce(self, y: Tensor) -> None:
        """Nothing is missing."""

    def gather(self, whole: Tensor, own: Tensor) -> None:
        """Likewise."""

    def close(self) -> None:
        """Nobody is left behind."""


class Group:
    """By torch.distributed: NCCL between GPUs, gloo between CPU processes. Started like kernels, so that graphs have
    them."""

    def __init__(self, backend: str, folder: Path, rank: int, world: int, *, exact: bool) -> None:
        """Waits for the other ranks. `folder`: where they find one another, empty before. `exact`: sums in the order of
        ranks, which the rows have no part in; it moves `world` times the bytes."""
        store = dist.FileStore(str(folder / "store"), world)  # type: ignore[attr-defined]
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS_MAX)
        )
        self.world = world
        self._sum = self._sum_in_order if exact else dist.all_reduce

    def reduce(self, y: Tensor) -> None:
        """See `Collective`."""
        launch(self._sum, None, y)

    def gather(self, whole: Tensor, own: Tensor) -> None:
        """See `Collective`."""
        if len(own):
            launch(self._join, None, whole, own)

    def _parts(self, own: Tensor) -> Tensor:
        """[world, n, columns]"""
        parts = own.new_empty((self.world, *own.shape))
        dist.all_gather(list(parts), own)
        return parts

    def _sum_in_order(self, y: Tensor) -> None:
        first, *others = self._parts(y)
        y.copy_(first)
        for part in others:
            y += part

    def _join(self, whole: Tensor, own: Tensor) -> None:
        width = own.shape[1]
        for rank, part in enumerate(self._parts(own)):
            columns = whole[:, rank * width : (rank + 1) * width]
            columns.copy_(part[:, : columns.shape[1]])

    def close(self) -> None:
        """Leaves the group."""
        dist.destroy_process_group()
