"""An engine with the GPU worker on CPU tensors: kernels interpreted or as their definitions, graphs as the double."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

import interpreted  # noqa: F401 - before Triton
import interpreter_repairs  # noqa: F401
from definitions import definitions
from lorad import Engine
from lorad.worker.gpu import worker
from lorad.worker.gpu.operators import Operators, triton_operators
from lorad.worker.gpu.recorded import RecordedCapture

CPU = torch.device("cpu")


def gpu_engine(
    base: Path,
    adapters: dict[str, Path],
    *,
    kernels: bool = False,
    graphs: bool = True,
    operators: Operators | None = None,
    capture_seconds: float = 60,
    **options: Any,
) -> Engine:
    """`kernels`: Triton's interpreter computes, slowly; else definitions. `graphs`: decode steps are captured, as many
    as there is time for at the start."""
    operators = operators or (triton_operators() if kernels else definitions())
    make = partial(
        worker.GpuWorker,
        device=CPU,
        operators=operators,
        capture=RecordedCapture() if graphs else None,
        capture_seconds=capture_seconds,
    )
    options = {"dtype": "float32", "kv_cache_memory_bytes": 4 << 20, **options}
    engine = Engine(str(base), make_worker=make, **options)
    for name, path in adapters.items():
        engine.load_adapter(name, str(path))
    return engine
