"""Adapters with any of PEFT's parts, as `save_pretrained` writes them: of a real PEFT model whose numbers are moved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from oracle import Oracle, load_reference


def train(base: Path, folder: Path, *, seed: int = 0, strength: float = 0.5, **lora_config: Any) -> Path:
    """Writes an adapter folder for the model in `base` and returns it. `lora_config`: fields of LoraConfig."""
    from peft import LoraConfig, get_peft_model

    options: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    model = get_peft_model(load_reference(base), LoraConfig(**(options | lora_config)))
    generator = torch.Generator().manual_seed(seed)
    scaling = {name: module.scaling["default"] for name, module in model.named_modules() if hasattr(module, "lora_A")}
    with torch.no_grad():
        for name, values in model.named_parameters():
            if not values.requires_grad:
                continue
            random = torch.randn(values.shape, generator=generator)
            if ".lora_B." in name or ".lora_embedding_" in name:
                module = name.split(".lora_")[0]
                if name.endswith(".bias"):
                    values.copy_(random * 0.3)
                    continue
                scale = abs(scaling[module]) if ".lora_embedding_A" not in name else 1.0
                weaker = 0.25 if ".lora_embedding_B" in name else 1.0
                values.copy_(random * strength * weaker / (scale * values.shape[1] ** 0.5))
                if ".lora_embedding_A" in name:
                    values.copy_(random)
            elif ".lora_A." in name:
                values.copy_(random / values.shape[1] ** 0.5)
            elif "lora_magnitude_vector" in name:
                values.mul_(random.sigmoid() + 0.5)
            else:  # the base's own, trained
                values.add_(random * 0.5 * (values.std() if values.dim() > 1 else 1.0))
    model.save_pretrained(folder)
    return folder


class Reference(NamedTuple):
    """Who is asked, and under which adapter."""

    oracle: Oracle
    adapter: Path | None

    def logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Oracle.logprobs`."""
        return self.oracle.logprobs(ids, self.adapter)


def references_of(base: Path, adapters: dict[str, Path]) -> dict[str, Reference]:
    """One for each adapter and the base, none of which shares a model: trained biases would stay in it."""
    return {name: Reference(Oracle(load_reference(base)), path) for name, path in [*adapters.items(), ("", None)]}
