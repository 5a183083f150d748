"""`Scene`: where a section runs. A GPU, or, for a dry run, CPU tensors: Triton's interpreter runs the kernels, engines
have definitions in their places and the double of graphs."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lorad import Engine
from lorad.models.weights import Weights


class Answer(NamedTuple):
    """What transformers + PEFT say in fp32, computed when the pack was made."""

    adapter: str
    """"": the base."""
    prompt: list[int]
    tokens: list[int]
    """Greedy, up to the first that is nearly a tie."""
    logprobs: list[float]


class Scene:
    """The device and the pack's data."""

    def __init__(self, data: Path, *, dry: bool) -> None:
        """`data`: the folder with `model.gguf`, `adapters/` and `answers.json`."""
        self.dry = dry
        self.device = torch.device("cpu") if dry else torch.device("cuda", 0)
        self.model = data / "model.gguf"
        self.adapters = {path.name: path for path in sorted((data / "adapters").iterdir())}
        self.answers = [Answer(**fields) for fields in json.loads((data / "answers.json").read_text())]

    def engine(self, model: Path | Weights, adapters: dict[str, Path] | None = None, **options: Any) -> Engine:
        """An engine on the device, with these adapters loaded. `model`: a file, or weights that lie in none."""
        if self.dry:
            options["make_worker"] = partial(_dry_worker, graphs=not options.get("enforce_eager"))
        else:
            options["device"] = "cuda"
        weights = None if isinstance(model, Path) else model
        engine = Engine(str(model) if isinstance(model, Path) else "synthetic", weights=weights, **options)
        for name, path in (adapters or {}).items():
            engine.load_adapter(name, str(path))
        return engine

    def wait(self) -> None:
        """Until the device has done all that was started."""
        if not self.dry:
            torch.cuda.synchronize()

    def now(self) -> float:
        """Seconds, when the device has done all that was started."""
        self.wait()
        return time.perf_counter()


def _dry_worker(weights: Weights, config: Any, *, graphs: bool, **calls: Any) -> Any:
    from definitions import definitions
    from lorad.worker.gpu.recorded import RecordedCapture
    from lorad.worker.gpu.worker import GpuWorker

    capture = RecordedCapture() if graphs else None
    return GpuWorker(weights, config, device=torch.device("cpu"), operators=definitions(), capture=capture, **calls)
