"""The GPU worker on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lorad.config import EngineConfig
from lorad.models.weights import Weights
from lorad.worker.gpu.capture import CudaCapture
from lorad.worker.gpu.operators import triton_operators
from lorad.worker.gpu.worker import GpuWorker


def cuda_worker(
    weights: Weights,
    config: EngineConfig,
    *,
    on_progress: Callable[[str, int, int], None],
    on_page_in: Callable[[], None],
) -> GpuWorker:
    """On the current device, with Triton's kernels and, unless `enforce_eager` is set, CUDA graphs."""
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
        on_progress=on_progress,
        on_page_in=on_page_in,
    )
