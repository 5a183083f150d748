"""The GPU worker of an engine of several ranks: the first one's, which leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch.distributed as dist

from lorad.config import EngineConfig
from lorad.errors import InvalidRequest
from lorad.models.shard import Shard
from lorad.models.weights import Weights
from lorad.worker.gpu.collective import Group
from lorad.worker.gpu.leader import Leader
from lorad.worker.gpu.rank import maker_of

if TYPE_CHECKING:
    from lorad.worker.gpu.worker import GpuWorker  # its kernels are the maker's to import


def leading_worker(
    weights: Weights,
    config: EngineConfig,
    *,
    on_progress: Callable[[str, int, int], None],
    on_page_in: Callable[[], None],
    maker: str = "lorad.worker.gpu.cuda:cuda_worker",
    backend: str = "nccl",
) -> GpuWorker:
    """The worker of the first rank, with the others' processes behind it. `maker` makes each rank's.

    Refused: what ranks can't do, and another engine of several in one process. EngineLost: a rank can't begin.
    """
    world = config.tensor_parallel_size
    if config.max_combined_adapters:
        raise InvalidRequest(
            f"max_combined_adapters: with tensor_parallel_size {world} only 0 can be served, got "
            f"{config.max_combined_adapters}",
            code="option_conflict",
            param="max_combined_adapters",
        )
    if dist.is_initialized():
        raise InvalidRequest(
            f"tensor_parallel_size: got {world}, but this process has its group of torch.distributed already",
            code="option_conflict",
            param="tensor_parallel_size",
        )
    shard = Shard(weights.config, 0, world)
    leader = Leader(config, shard.config, backend=backend, maker=maker, on_lost=on_page_in)
    group = None
    try:
        with leader.together():
            group = Group(backend, leader.folder, 0, world, exact=config.deterministic)
        worker = maker_of(maker)(
            shard.weights(weights),
            config,
            rank=0,
            collective=group,
            others=leader,
            on_progress=on_progress,
            on_page_in=on_page_in,
        )
        leader.wait_until_built()
    except BaseException:
        leader.close()
        if group is not None:
            group.close()
        raise
    return worker
