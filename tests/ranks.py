"""Engines of several ranks: processes on this machine's CPU, with definitions in the kernels' places and gloo."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import interpreted  # noqa: F401 - before Triton
import interpreter_repairs  # noqa: F401
from definitions import definitions
from lorad import Engine
from lorad.config import EngineConfig
from lorad.engine.engine import process_engine
from lorad.worker.gpu.leader import Leader
from lorad.worker.gpu.leading import leading_worker
from lorad.worker.gpu.recorded import RecordedCapture
from lorad.worker.gpu.worker import GpuWorker

CPU = torch.device("cpu")
HERE = Path(__file__).parent


def part(weights: Any, config: EngineConfig, *, rank: int, **more: Any) -> GpuWorker:
    """Makes a rank's worker, in its process."""
    torch.set_num_threads(1)
    capture = None if config.enforce_eager else RecordedCapture()
    return GpuWorker(weights, config, device=CPU, operators=definitions(), capture=capture, **more)


make_ranks = partial(leading_worker, maker="ranks:part", backend="gloo")


def ranks_engine(base: Path, adapters: dict[str, Path], ranks: int, **options: Any) -> Engine:
    """An engine of so many ranks in this process and others."""
    options = {"dtype": "float32", "kv_cache_memory_bytes": 4 << 20, **options}
    engine = Engine(str(base), make_worker=make_ranks, tensor_parallel_size=ranks, **options)
    for name, path in adapters.items():
        engine.load_adapter(name, str(path))
    return engine


def leader_of(engine: Engine) -> Leader:
    leader: Leader = engine.worker._others  # type: ignore[attr-defined]
    return leader


def process_ranks(*args: Any, **more: Any) -> Engine:
    """The engine of an engine process, of several ranks."""
    return process_engine(*args, make_worker=make_ranks, **more)


def find_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the processes import this, and find one another without a network."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
