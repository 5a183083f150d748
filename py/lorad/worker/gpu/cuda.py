"""The GPU worker on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lorad.config import EngineConfig
from lorad.models.weights import Tensors
from lorad.worker.gpu.capture import CudaCapture
from lorad.worker.gpu.collective import Collective
from lorad.worker.gpu.operators import triton_operators
from lorad.worker.gpu.others import Others
from lorad.worker.gpu.worker import GpuWorker


def cuda_worker(
    weights: Tensors,
    config: EngineConfig,
    *,
    rank: int | None = None,
    collective: Collective | None = None,
    others: Others | None = None,
    on_progress: Callable[[str, int, int], None],
    on_page_in: Callable[[], None],
) -> GpuWorker:
    """On the current device, with Triton's kernels and, unless `enforce_eager` is set, CUDA graphs. `rank`: of several,
    each on the device of its number."""
    if rank is not None:
        torch.cuda.set_device(rank)
    device = torch.device("cuda", torch.cuda.current_device())
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    torch.cuda.set_stream(stream)  # of this thread, which steps the engine: graphs can't be captured on the default one
    capture = None if config.enforce_eager else CudaCapture(stream)
    return GpuWorker(
        weights,
        config,
        device=device,
        operators=triton_operators(),
        capture=capture,
        collective=collective,
        others=others,
        on_progress=on_progress,
        on_page_in=on_page_in,
    )
