"""Which worker an engine has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lorad.adapters.image import AdapterImage
from lorad.config import EngineConfig
from lorad.engine.messages import Sampling
from lorad.errors import InvalidRequest, LoradError
from lorad.lazy import torch
from lorad.models.weights import Weights
from lorad.worker.limits import Limits
from lorad.worker.ops import PageGeometry
from lorad.worker.page_ins import PageIn, PageIns
from lorad.worker.plan import Plan
from lorad.worker.sampler import Sampler, Samples


class Model(Protocol):
    """A base model as a worker holds it."""

    @property
    def bytes(self) -> int:
        """Of all weights."""


class Started(Protocol):
    """A plan whose rows a worker computes."""

    @property
    def on_device(self) -> bool:
        """Whether its tokens are where the next plan's rows can have them from."""


class AnyWorker(Protocol):
    """What an engine asks of a worker; see `Worker` and `GpuWorker`."""

    dtype: str
    geometry: PageGeometry
    plans_max: int
    """Plans that it may have at once: with 2, one is started before the tokens of the one before are known."""
    limits: Limits
    page_ins: PageIns
    sampler: Sampler

    @property
    def lost(self) -> LoradError | None:
        """Why it can't go on, if so."""

    @property
    def model(self) -> Model: ...
    def core_config(self) -> dict[str, Any]: ...
    def add_adapter(self, adapter: int, tag: int, image: AdapterImage) -> None: ...
    def image(self, adapter: int) -> AdapterImage: ...
    def drop_adapter(self, adapter: int) -> None: ...
    def finished_page_ins(self) -> list[PageIn]: ...
    def wait_for_page_ins(self) -> None: ...
    def apply(self, plan: Plan, sampling: Mapping[int, Sampling]) -> None: ...
    def start(self, plan: Plan) -> Started:
        """Begins to compute the rows of a plan; `plan` stays as it is until `finish`."""

    def finish(self, started: Any) -> Samples:
        """Waits for the rows of a plan and samples those that are due. In the order of `start`."""

    def use_idle(self) -> bool: ...
    def close(self) -> None: ...


class MakeWorker(Protocol):
    """Makes the worker of an engine."""

    def __call__(
        self,
        weights: Weights,
        config: EngineConfig,
        *,
        on_progress: Callable[[str, int, int], None],
        on_page_in: Callable[[], None],
    ) -> AnyWorker: ...


def make_worker(
    weights: Weights,
    config: EngineConfig,
    *,
    on_progress: Callable[[str, int, int], None],
    on_page_in: Callable[[], None],
) -> AnyWorker:
    """The one that `config.device` asks for. Refuses a device that isn't there."""
    ranks = config.tensor_parallel_size
    if config.device == "cpu":
        if ranks > 1:
            raise InvalidRequest(
                f"tensor_parallel_size: at most 1 with --device cpu, got {ranks}",
                code="option_conflict",
                param="tensor_parallel_size",
            )
        from lorad.worker.worker import Worker

        return Worker(weights, config, on_progress=on_progress, on_page_in=on_page_in)
    if not torch.cuda.is_available():
        built = torch.version.cuda
        raise InvalidRequest(
            "device: cuda was asked for, but "
            + (f"no GPU can be used (torch for CUDA {built})" if built else "this torch was built for CPUs"),
            code="device_missing",
            param="device",
        )
    if ranks > torch.cuda.device_count():
        raise InvalidRequest(
            f"tensor_parallel_size: at most {torch.cuda.device_count()}, as many GPUs as torch can use, got {ranks}",
            code="device_missing",
            param="tensor_parallel_size",
        )
    if ranks > 1:
        from lorad.worker.gpu.leading import leading_worker

        return leading_worker(weights, config, on_progress=on_progress, on_page_in=on_page_in)
    from lorad.worker.gpu.cuda import cuda_worker

    return cuda_worker(weights, config, on_progress=on_progress, on_page_in=on_page_in)
