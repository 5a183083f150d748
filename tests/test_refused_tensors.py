"""Adapters whose tensors can't be applied in full: refused at load, with the tensor and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lorad.adapters.load import load_adapter
from lorad.models.config import ModelConfig
from lorad.models.hf_config import config_from_hf
from make_adapter import edit_config, edit_tensors, make_adapter
from refusing import B_KEY, EMBED, KEY, LM_HEAD, Case, changed, named, refused, replaced, spelt
from tiny import tiny_config

MAGNITUDE = "lora_magnitude_vector"


def bad_value(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[1, 2] = value
        return tensor

    return change


TENSORS: dict[str, Case] = {
    "1.1 wrapper level": (
        spelt(lambda key: key.replace("model.layers", "model.language_model.layers")),
        "adapter_tensor",
        ("base_model.model.model.language_model.layers.0", "model.layers.0.self_attn.q_proj", "12 such tensors"),
    ),
    "1.1 deeper": (spelt(lambda key: "wrapper." + key), "adapter_tensor", ("wrapper.base_model.model",)),
    "1.1 last part only": (spelt(lambda key: key.replace("self_attn", "attn")), "adapter_tensor", (".attn.q_proj",)),
    "1.1 wrong parent": (spelt(lambda key: key.replace("self_attn", "mlp")), "adapter_tensor", ("mlp.q_proj",)),
    "1.1 after the name": (spelt(lambda key: key + ".0"), "adapter_tensor", (".weight.0",)),
    "1.2 one pair more": (
        lambda path: edit_tensors(
            path,
            lambda old: (
                old
                | {
                    KEY.replace("q_proj", "qkv_proj"): torch.ones(4, 64),
                    B_KEY.replace("q_proj", "qkv_proj"): torch.ones(64, 4),
                }
            ),
        ),
        "adapter_tensor",
        ("self_attn.qkv_proj.lora_A.weight", "2 such tensors"),
    ),
    "1.2 layer that isn't there": (
        spelt(lambda key: key.replace("layers.2", "layers.3")),
        "adapter_shape",
        ("layer 3", "has 3"),
    ),
    "1.2 huge layer number": (
        spelt(lambda key: key.replace("layers.2", "layers.99999999999999999999")),
        "adapter_tensor",
        ("layers.99999999999999999999",),
    ),
    "1.2 leading zero": (spelt(lambda key: key.replace("layers.2", "layers.02")), "adapter_tensor", ("layers.02",)),
    "1.2 half a pair: A": (
        lambda path: edit_tensors(path, lambda old: {k: v for k, v in old.items() if k != B_KEY}),
        "adapter_pair",
        (KEY, "without its lora_B"),
    ),
    "1.2 half a pair: B": (
        lambda path: edit_tensors(path, lambda old: {k: v for k, v in old.items() if k != KEY}),
        "adapter_pair",
        (B_KEY, "without its lora_A"),
    ),
    "1.2 two spellings of one module": (
        lambda path: edit_tensors(path, lambda old: old | {KEY[len("base_model.model.") :]: old[KEY].clone()}),
        "adapter_tensor",
        (KEY, "for the same module"),
    ),
    "5.7 two adapters in one file": (
        lambda path: edit_tensors(
            path,
            lambda old: {k.replace(".weight", ".x.weight" if "2" in k else ".y.weight"): v for k, v in old.items()},
        ),
        "adapter_tensor",
        ("two adapters in one file", ".x.weight", ".y.weight"),
    ),
    "1.2 no tensors": (lambda path: edit_tensors(path, lambda old: {}), "adapter_tensor", ("no tensors",)),
    "5.1 trained in full": (
        named("base_model.model.model.layers.0.mlp.up_proj.modules_to_save.weight", torch.ones(96, 64)),
        "adapter_feature",
        ("modules_to_save", "mlp.up_proj"),
    ),
    "5.2 DoRA that the config doesn't tell of": (
        named("base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector", torch.ones(96)),
        "adapter_feature",
        ("DoRA", "lora_magnitude_vector"),
    ),
    "5.8 base weight": (named(LM_HEAD, torch.ones(320, 64)), "adapter_feature", (LM_HEAD, "without the base's")),
    "5.8 layer weight": (
        named("base_model.model.model.layers.1.mlp.up_proj.base_layer.weight", torch.ones(96, 64)),
        "adapter_feature",
        ("up_proj.base_layer.weight", "remove it"),
    ),
    "5.9 added tokens": (
        lambda path: edit_tensors(path, lambda old: old | {LM_HEAD: torch.ones(328, 64), EMBED: torch.ones(328, 64)}),
        "adapter_added_tokens",
        ("328", "320", "added tokens"),
    ),
    "5.11 bias": (
        named("base_model.model.model.layers.0.self_attn.q_proj.bias", torch.ones(64)),
        "adapter_feature",
        ("bias", "q_proj.bias"),
    ),
    "5.11 LoRA bias": (named(B_KEY.replace("weight", "bias"), torch.ones(64)), "adapter_feature", ("lora_bias",)),
    "5.11 a base without biases": (
        lambda path: changed(bias="all")(
            named("base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias", torch.ones(64))(path)
        ),
        "adapter_tensor",
        ("q_proj.base_layer.bias", "the base has none"),
    ),
    "5.2 magnitudes missing": (changed(use_dora=True), "adapter_pair", ("no lora_magnitude_vector", "use_dora")),
    "5.2 magnitudes of another width": (
        lambda path: changed(use_dora=True)(
            edit_tensors(
                path, lambda old: old | {k.replace("lora_B.weight", MAGNITUDE): torch.ones(63) for k in old if "B" in k}
            )
        ),
        "adapter_shape",
        (MAGNITUDE, "[63]", "[64]"),
    ),
    "5.2 magnitudes alone": (
        lambda path: changed(use_dora=True)(
            edit_tensors(path, lambda old: {KEY.replace("lora_A.weight", MAGNITUDE): torch.ones(64)})
        ),
        "adapter_pair",
        ("q_proj", "without lora_A"),
    ),
    "5.2 NaN in magnitudes": (
        lambda path: changed(use_dora=True)(
            named(f"base_model.model.model.layers.0.self_attn.q_proj.{MAGNITUDE}", torch.full((64,), torch.nan))(
                edit_tensors(path, lambda old: {k: v for k, v in old.items() if "layers.0.self_attn" in k})
            )
        ),
        "adapter_not_finite",
        (MAGNITUDE, "NaN"),
    ),
    "5.11 biases of B missing": (changed(lora_bias=True), "adapter_pair", ("no bias of lora_B", "lora_bias")),
    "2.13 LoRA on the embedding": (
        named("base_model.model.model.embed_tokens.lora_embedding_A", torch.ones(4, 320)),
        "adapter_pair",
        ("embed_tokens.lora_embedding_A", "without its lora_B"),
    ),
    "2.13 LoRA on the output": (
        named("base_model.model.lm_head.lora_A.weight", torch.ones(4, 64)),
        "adapter_pair",
        ("lm_head.lora_A", "without its lora_B"),
    ),
    "2.13 an embedding's pair by other names": (
        named("base_model.model.model.embed_tokens.lora_A.weight", torch.ones(4, 320)),
        "adapter_tensor",
        ("embed_tokens.lora_A",),
    ),
    "trainable tokens": (
        named("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", torch.ones(2, 64)),
        "adapter_feature",
        ("trainable_token_indices, which has no embed_tokens",),
    ),
    "VeRA": (
        named("base_model.model.model.layers.0.self_attn.q_proj.vera_lambda_b", torch.ones(64)),
        "adapter_feature",
        ("other than LoRA",),
    ),
    "5.13 NaN": (replaced(KEY, bad_value(float("nan"))), "adapter_not_finite", (KEY, "NaN")),
    "5.13 infinity": (replaced(B_KEY, bad_value(float("-inf"))), "adapter_not_finite", (B_KEY, "infinite")),
    "5.13 NaN in bf16": (
        replaced(KEY, lambda tensor: bad_value(float("nan"))(tensor).to(torch.bfloat16)),
        "adapter_not_finite",
        (KEY,),
    ),
    "5.13 every value finite, what they make isn't": (
        lambda path: edit_tensors(path, lambda old: {key: tensor.sign() * 1e16 for key, tensor in old.items()}),
        "adapter_not_finite",
        ("too large", "lora_A", "1e+30"),
    ),
    "5.13 a scale that makes it infinite": (changed(lora_alpha=1e32), "adapter_not_finite", ("too large", "scale")),
    "5.13 a scale that makes it infinite before a B of zeros": (
        lambda path: edit_tensors(
            edit_config(path, alpha_pattern={"q_proj": 1e35}),
            lambda old: {key: tensor * ("q_proj.lora_B" not in key) for key, tensor in old.items()},
        ),
        "adapter_not_finite",
        ("too large", "q_proj", "‖B‖ = 0"),
    ),
    "5.14 A of another width": (
        replaced(KEY, lambda tensor: torch.ones(4, 128)),
        "adapter_shape",
        (KEY, "[4, 128]", "[4, 64]"),
    ),
    "5.14 B of another height": (
        replaced(B_KEY, lambda tensor: torch.ones(32, 4)),
        "adapter_shape",
        (B_KEY, "[32, 4]", "[64, 4]"),
    ),
    "5.14 transposed": (replaced(KEY, lambda tensor: tensor.T), "adapter_shape", (KEY, "[64, 4]")),
    "5.14 one dimension": (replaced(KEY, lambda tensor: torch.ones(64)), "adapter_shape", (KEY, "two dimensions")),
    "5.14 three dimensions": (replaced(KEY, lambda tensor: tensor[None]), "adapter_shape", ("two dimensions",)),
    "5.14 ranks of A and B": (
        replaced(B_KEY, lambda tensor: torch.ones(64, 5)),
        "adapter_shape",
        ("rank 4", "lora_B 5"),
    ),
    "empty rank": (
        lambda path: edit_tensors(path, lambda old: old | {KEY: torch.ones(0, 64), B_KEY: torch.ones(64, 0)}),
        "adapter_rank",
        ("rank 0",),
    ),
    "2.3 rank differs from r": (changed(r=8), "adapter_rank", ("rank 4", "says 8")),
    "2.3 rank differs from rank_pattern": (
        changed(rank_pattern={"layers.0.self_attn.q_proj": 2}),
        "adapter_rank",
        (KEY, "rank 4", "says 2"),
    ),
    "no effect: B": (
        lambda path: edit_tensors(path, lambda old: {k: v * (".lora_B." not in k) for k, v in old.items()}),
        "adapter_no_effect",
        ("no effect",),
    ),
    "no effect: A is zero where B isn't": (
        lambda path: edit_tensors(
            path,
            lambda old: {
                key: value * (torch.arange(4) < 2)[:, None] if ".lora_A." in key else value * (torch.arange(4) >= 2)
                for key, value in old.items()
            },
        ),
        "adapter_no_effect",
        ("B · A",),
    ),
    "no effect: scale": (changed(lora_alpha=0), "adapter_no_effect", ("scale",)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(name: str, adapter: Path, config: ModelConfig) -> None:
    change, code, texts = TENSORS[name]
    change(adapter)
    refused(adapter, config, code, *texts)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8], ids=str)
def test_number_types_1_3(dtype: torch.dtype, adapter: Path, config: ModelConfig) -> None:
    edit_tensors(adapter, lambda old: {key: value.to(dtype) for key, value in old.items()})
    refused(adapter, config, "adapter_dtype", "is of type", "F32, F16, BF16")


def test_rank_limit_5_3(config: ModelConfig, tmp_path: Path) -> None:
    path = make_adapter(tmp_path, config, rank=64)
    refused(path, config, "adapter_rank_limit", "64", "16", "--max-lora-rank", max_lora_rank=16)
    load_adapter("mine", path, config, "digest", max_lora_rank=64)
    path = make_adapter(tmp_path / "pattern", config, rank=4, rank_pattern={"layers.1.mlp.up_proj": 65})
    refused(path, config, "adapter_rank_limit", "layers.1.mlp.up_proj", "65", "64", max_lora_rank=64)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 128},
        {"num_hidden_layers": 5},
        {"num_attention_heads": 8, "num_key_value_heads": 4},
        {"intermediate_size": 128},
    ],
    ids=["hidden size", "more layers", "head count", "width"],
)
def test_adapter_of_another_base_5_14(changes: dict[str, Any], config: ModelConfig, tmp_path: Path) -> None:
    other = config_from_hf(tiny_config(**changes).to_dict(), "other")
    refused(make_adapter(tmp_path, other), config, "adapter_shape", "tensor base_model.model.model.layers.")


def test_base_with_other_order_of_checks(config: ModelConfig, tmp_path: Path) -> None:
    """Added tokens are named as the cause even where modules_to_save would be refused too (5.9)."""
    path = make_adapter(tmp_path, config, rank=4)
    edit_config(path, modules_to_save=["lm_head", "embed_tokens"])
    edit_tensors(path, lambda old: old | {LM_HEAD: torch.ones(328, 64)})
    refused(path, config, "adapter_added_tokens", "328", "320")
