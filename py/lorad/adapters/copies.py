"""Whole weights of the base in an adapter's file: PEFT saves the embedding and the head along when they're adapted."""

from __future__ import annotations

import numpy as np

from lorad.adapters.derived import BaseValues
from lorad.adapters.keys import vocabulary_rows
from lorad.adapters.reject import reject
from lorad.lazy import torch
from lorad.models.config import EMBED, HEAD, ModelConfig
from lorad.models.safetensors_file import Entry


def copy_of(key: str, entry: Entry, config: ModelConfig) -> str | None:
    """The canonical name of the base's weight that a tensor may be a copy of; None if it can't be one."""
    if vocabulary_rows(key, entry) is None or ".modules_to_save" in key or entry.shape != (config.vocab, config.hidden):
        return None
    return config.weight_name(0, HEAD if HEAD in key else EMBED)


def check_copies(copies: dict[str, str], tensors: dict[str, torch.Tensor], base: BaseValues) -> None:
    """Refuses a copy that isn't the base's weight, number by number: then it was trained, or is another base's."""
    for key, name in copies.items():
        if not np.array_equal(tensors[key].float().numpy(), base(name)):
            raise reject(
                "adapter_feature",
                f"tensor {key} is a whole weight and not the base's own ({name}): if it was trained, it can't be "
                "applied; if it's that of the base in another number type, remove it from the file (PEFT: "
                "save_embedding_layers=False)",
            )
