"""Opening a base model by what the user calls it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lorad.errors import ModelRejected
from lorad.models.fields import shown
from lorad.models.gguf_file import GgufWeights
from lorad.models.safetensors_model import SafetensorsWeights
from lorad.models.weights import Weights
from lorad.named_file import expanded, is_file, is_folder

OnProgress = Callable[[str, int, int], None]
"""(stage, done, total)"""


def open_model(model: str | Path, on_progress: OnProgress = lambda stage, done, total: None) -> Weights:
    """A GGUF file, a Hugging Face folder, or `smollm2` (fetched first, if need be)."""
    if str(model) == "smollm2":
        from lorad.demo.base import embedded_base

        return GgufWeights(embedded_base(on_progress))
    path = expanded(check_model(model))
    if is_folder(path):
        return SafetensorsWeights(path)
    if is_file(path):
        return GgufWeights(path)
    raise no_model(model)


def check_model(model: str | Path) -> str | Path:
    """`model`, unless it says nothing: an empty path would be the current folder."""
    if not model or not isinstance(model, str | Path):
        raise ModelRejected(f"model: a file or folder, got {shown(model)}", code="model_missing", param="model")
    return model


def no_model(model: str | Path) -> ModelRejected:
    """The refusal of a path with no base at it."""
    return ModelRejected(f"no model at {shown(str(model))}", code="model_missing", param="model")
