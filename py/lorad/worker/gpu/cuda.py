"""The GPU worker on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from lorad.config import EngineConfig
from lorad.kernels import tuned
from lorad.models.files import data_folder
from lorad.models.weights import Tensors
from lorad.worker.gpu.capture import CudaCapture
from lorad.worker.gpu.collective import Collective
from lorad.worker.gpu.operators import triton_operators
from lorad.worker.gpu.others import Others
from lorad.worker.gpu.worker import GpuWorker

log = logging.getLogger("lorad.worker")


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
    _use_tuned(torch.cuda.get_device_name(device))
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


def _use_tuned(gpu: str) -> None:
    """Kernels take the sizes that were found for this GPU, if there's a file; one that can't be read is told and passed
    over: the usual sizes are right everywhere."""
    try:
        path = tuned.use(gpu, data_folder() / "tuned")
    except ValueError as mistake:
        log.warning("sizes of kernels: %s; the usual ones are taken", mistake)
    else:
        log.info("sizes of kernels: %s", "the usual ones" if path is None else path.name)
