"""Opening a base model by what the user calls it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lorad.errors import ModelRejected
from lorad.models.gguf_file import GgufWeights
from lorad.models.safetensors_model import SafetensorsWeights
from lorad.models.weights import Weights

OnProgress = Callable[[str, int, int], None]
"""(stage, done, total)"""


def open_model(model: str | Path, on_progress: OnProgress = lambda stage, done, total: None) -> Weights:
    """A GGUF file, a Hugging Face folder, or `smollm2` (fetched first, if need be)."""
    if str(model) == "smollm2":
        from lorad.demo.base import embedded_base

        return GgufWeights(embedded_base(on_progress))
    path = Path(model).expanduser()
    if path.is_dir():
        return SafetensorsWeights(path)
    if path.is_file():
        return GgufWeights(path)
    raise ModelRejected(f"no model at {str(model)!r}", code="model_missing", param="model")
