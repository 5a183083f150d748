"""Refusals of adapters: what a test expects of one, and how an adapter is spoilt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lorad.adapters.load import load_adapter
from lorad.errors import AdapterRejected
from lorad.models.config import ModelConfig
from make_adapter import edit_config, edit_tensors

Tensors = dict[str, torch.Tensor]
Case = tuple[Callable[[Path], Any], str, tuple[str, ...]]
"""What is done to an adapter's folder; the refusal's code, and what its message says."""

FILE = "adapter_model.safetensors"
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B_KEY = KEY.replace("lora_A", "lora_B")
LM_HEAD, EMBED = "base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight"


def refused(path: Path, config: ModelConfig, code: str, *texts: str, **options: Any) -> str:
    with pytest.raises(AdapterRejected) as caught:
        load_adapter("mine", path, config, "digest", **options)
    message = caught.value.message
    assert caught.value.code == code, message
    assert message.startswith("adapter 'mine': ")
    for text in texts:
        assert text in message, message
    return message


def named(name: str, tensor: torch.Tensor) -> Callable[[Path], Path]:
    return lambda path: edit_tensors(path, lambda old: old | {name: tensor})


def replaced(key: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], Path]:
    return lambda path: edit_tensors(path, lambda old: old | {key: change(old[key])})


def spelt(change: Callable[[str], str]) -> Callable[[Path], Path]:
    return lambda path: edit_tensors(path, lambda old: {change(key): value for key, value in old.items()})


def changed(**fields: Any) -> Callable[[Path], Path]:
    return lambda path: edit_config(path, **fields)
