"""What PEFT writes for parts beside A and B: refused where config, base and tensors don't agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lorad.adapters.load import load_adapter
from lorad.models.config import ModelConfig
from make_adapter import edit_config, edit_tensors, make_adapter
from refusing import Tensors, refused


def no_effect(tensors: Tensors) -> Tensors:
    return {key: value * (".lora_B." not in key) for key, value in tensors.items()}


def test_peft_made_features_are_refused(config: ModelConfig, tmp_path: Path) -> None:
    """What PEFT itself writes for a feature, so that the spelling of its tensors isn't only believed."""
    dora = make_adapter(tmp_path / "dora", config, use_dora=True)
    refused(dora, config, "adapter_feature", "lora_magnitude_vector", "without the base's weights")
    zeros = {"base": lambda name: np.zeros(config.shapes()[name], dtype=np.float32)}
    refused(edit_tensors(dora, no_effect), config, "adapter_not_finite", "lora_magnitude_vector", "row 0", **zeros)
    refused(edit_config(dora, use_dora=False), config, "adapter_feature", "lora_magnitude_vector", "DoRA")
    biased = make_adapter(tmp_path / "bias", config, lora_bias=True)
    edit_tensors(biased, lambda old: {k: v.fill_(3e38) if k.endswith(".bias") else v for k, v in old.items()})
    refused(biased, config, "adapter_not_finite", "lora_B.bias", "beyond f32")
    edit_tensors(biased, lambda old: {k: v.fill_(1e35) if k.endswith(".bias") else v for k, v in old.items()})
    refused(biased, config, "adapter_not_finite", "too large", "bias 2e+35")
    refused(edit_config(biased, lora_bias=False), config, "adapter_feature", "lora_B.bias")
    whole = make_adapter(tmp_path / "whole", config, modules_to_save=["lm_head", "embed_tokens"])
    refused(whole, config, "adapter_feature", "without the base's weights")
    load_adapter("mine", whole, config, "digest", **zeros)
    refused(
        edit_config(whole, ensure_weight_tying=True, modules_to_save=["lm_head"]),
        config,
        "adapter_feature",
        "only lm_head",
    )
    edit_config(whole, ensure_weight_tying=...)
    refused(whole, config, "adapter_feature", "embed_tokens.weight is a whole weight", **zeros)
    refused(edit_config(whole, modules_to_save=None), config, "adapter_feature", "is a whole weight", **zeros)
    rows = make_adapter(tmp_path / "rows", config, trainable_token_indices=[5, 9])
    load_adapter("mine", rows, config, "digest", **zeros)
    for indices, code, text in (
        ([5], "adapter_shape", "[2, 64], wants [1, 64]"),
        ([5, 320], "adapter_added_tokens", "320"),
        ([5, 5], "adapter_config", "a token twice"),
        ([5, -1], "adapter_config", "a list of token ids"),
        ([5, True], "adapter_config", "a list of token ids"),
        ({"embed_tokens": [5, 9], "lm_head": [5, 9], "norm": [1]}, "adapter_feature", "'norm'"),
        ({"embed_tokens": [5, 9], "lm_head": [5]}, "adapter_pair", "has lm_head, but the file has no tensor"),
        ({"lm_head": [5, 9]}, "adapter_feature", "which has no embed_tokens"),
        (5, "adapter_config", "wants a list"),
    ):
        refused(edit_config(rows, trainable_token_indices=indices), config, code, text, **zeros)
    edit_config(rows, trainable_token_indices=[5, 9])
    refused(rows, config, "adapter_rank_limit", "at most 1", max_lora_rank=1, **zeros)
    embedding = make_adapter(tmp_path / "embedding", config, modules=["embed_tokens", "q_proj"])
    refused(embedding, config, "adapter_feature", "embed_tokens.base_layer.weight", "not the base's own", **zeros)
    edit_tensors(embedding, lambda old: {key: value for key, value in old.items() if "base_layer" not in key})
    load_adapter("mine", embedding, config, "digest")
    refused(edit_config(embedding, ensure_weight_tying=True), config, "adapter_pair", "only embed_tokens", **zeros)
