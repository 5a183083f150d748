"""Configs and files of the families beside Llama: what they mean, as transformers has it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lorad.errors import ModelRejected
from lorad.models.config import ModelConfig
from lorad.models.gguf_config import config_from_gguf
from lorad.models.hf_config import config_from_hf
from lorad.models.open import open_model
from lorad.models.rope import LinearRope
from tiny import FAMILIES, make_tiny, make_tiny_gguf, tiny_config

LEAST = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 30}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Mistral 7B v0.1": {
        "model_type": "mistral", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "Mistral 7B v0.3": {
        "model_type": "mistral", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
        "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32768,
    },
    "Qwen2.5 0.5B": {
        "model_type": "qwen2", "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu",
        "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True, "use_mrope": False,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "Qwen3 0.6B": {
        "model_type": "qwen3", "attention_bias": False, "bos_token_id": 151643, "eos_token_id": 151645,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
        "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "Gemma 3 1B": {
        "model_type": "gemma3_text", "attention_bias": False, "attn_logit_softcapping": None, "bos_token_id": 2,
        "eos_token_id": [1, 106], "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
        "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144,
    },
}  # fmt: skip


def config_class(raw: dict[str, Any]) -> Any:
    import transformers

    return getattr(transformers, FAMILIES[raw["model_type"].removesuffix("_text")])


def assert_same(raw: dict[str, Any]) -> ModelConfig:
    """Ours and transformers' reading of a config.json."""
    ours, theirs = config_from_hf(raw, "x"), config_class(raw)(**raw)
    assert (ours.heads, ours.kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    width = theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == getattr(theirs, "head_dim", width)
    assert (ours.context_length, ours.norm_eps) == (theirs.max_position_embeddings, theirs.rms_norm_eps)
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    rope = theirs.rope_parameters
    assert ours.rope_theta == rope.get("full_attention", rope)["rope_theta"]
    assert ours.local_rope_theta == rope.get("sliding_attention", {}).get("rope_theta")
    types = getattr(theirs, "layer_types", None) or ["sliding_attention"] * ours.layers
    assert [ours.window(layer) for layer in range(ours.layers)] == [
        theirs.sliding_window if kind == "sliding_attention" else None for kind in types
    ]
    scalar = getattr(theirs, "query_pre_attn_scalar", ours.head_dim)
    assert ours.attention_scale == scalar**-0.5
    return ours


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(name: str) -> None:
    config = assert_same(PUBLISHED[name])
    assert config.qkv_bias == name.startswith("Qwen2")
    assert config.head_norms == name.startswith(("Qwen3", "Gemma"))
    assert config.branch_norms == name.startswith("Gemma")


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3", "gemma3_text"])
def test_fields_that_are_left_out_mean_what_transformers_takes(family: str) -> None:
    heads = {} if family == "gemma3_text" else {"num_attention_heads": 32}
    assert_same(LEAST | heads | {"model_type": family})


def test_layer_types_go_before_the_rule() -> None:
    types = ["full_attention", "sliding_attention", "full_attention"]
    for family in ("qwen2", "qwen3", "gemma3"):
        raw = tiny_config(family).to_dict() | {"layer_types": types, "use_sliding_window": True, "sliding_window": 33}
        assert config_from_hf(raw, "x").windows == (0, 33, 0)


def test_gemma_rope_in_both_spellings() -> None:
    old = PUBLISHED["Gemma 3 1B"] | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 5e5}
    config = assert_same(old)
    assert (config.rope_theta, config.rope_scaling, config.local_rope_theta) == (5e5, LinearRope(8.0), 1e4)
    new = {key: value for key, value in old.items() if not key.startswith("rope_")}
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert assert_same(new) == config


@pytest.mark.parametrize(
    ("family", "changes", "code", "text"),
    [
        ("llama", {"sliding_window": 512}, "model_feature", "sliding_window"),
        ("llama", {"layer_types": ["sliding_attention"] * 3}, "model_feature", "layer_types"),
        ("mistral", {"layer_types": ["full_attention"] * 3}, "model_feature", "layer_types"),
        ("mistral", {"sliding_window": 0}, "model_config", "sliding_window is 0"),
        ("mistral", {"sliding_window": "wide"}, "model_config", "sliding_window"),
        ("mistral", {"attention_bias": True}, "model_feature", "attention_bias"),
        ("mistral", {"num_local_experts": 8}, "model_feature", "num_local_experts"),
        ("mistral", {"model_type": "mixtral"}, "model_architecture", "mixtral"),
        ("mistral", {"model_type": "ministral"}, "model_architecture", "ministral"),
        ("qwen2", {"model_type": "qwen2_moe"}, "model_architecture", "qwen2_moe"),
        ("qwen2", {"layer_types": ["full_attention"] * 2}, "model_config", "layer_types doesn't name 3"),
        ("qwen2", {"layer_types": ["linear_attention"] * 3}, "model_feature", "linear_attention"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "model_config", "sliding_window is missing"),
        ("qwen2", {"hidden_act": "gelu"}, "model_feature", "hidden_act"),
        ("qwen2", {"use_mrope": True}, "model_feature", "use_mrope"),
        ("qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "model_feature", "yarn"),
        ("qwen3", {"attention_bias": True}, "model_feature", "attention_bias"),
        ("qwen3", {"num_experts": 128}, "model_feature", "num_experts"),
        ("gemma3", {"model_type": "gemma3"}, "model_architecture", "'gemma3'"),
        ("gemma3", {"model_type": "gemma2"}, "model_architecture", "'gemma2'"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "model_feature", "final_logit_softcapping"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "model_feature", "attn_logit_softcapping"),
        ("gemma3", {"hidden_activation": "gelu"}, "model_feature", "hidden_activation"),
        ("gemma3", {"use_bidirectional_attention": True}, "model_feature", "use_bidirectional_attention"),
        ("gemma3", {"sliding_window": None}, "model_config", "sliding_window is missing"),
        ("gemma3", {"layer_types": None, "sliding_window_pattern": 0}, "model_config", "sliding_window_pattern"),
        ("gemma3", {"query_pre_attn_scalar": 0}, "model_config", "query_scalar"),
        ("gemma3", {"query_pre_attn_scalar": None}, "model_config", "query_pre_attn_scalar"),
        ("gemma3", {"rope_parameters": {"rope_theta": 1e4}}, "model_config", "rope_parameters"),
        ("gemma3", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "model_feature", "yarn"),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "model_feature",
            "with a window",
        ),
    ],
    ids=str,
)
def test_configs_refused(family: str, changes: dict[str, Any], code: str, text: str) -> None:
    with pytest.raises(ModelRejected) as caught:
        config_from_hf(tiny_config(family).to_dict() | changes, "x")
    assert caught.value.code == code, caught.value
    assert text in caught.value.message


def test_too_many_layers_are_refused_at_once() -> None:
    with pytest.raises(ModelRejected, match="layers is 2000000000, at most"):
        config_from_hf(tiny_config("gemma3").to_dict() | {"num_hidden_layers": 2_000_000_000, "layer_types": None}, "x")


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("gemma") / "model", "gemma3", query_pre_attn_scalar=16)


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("qwen2") / "model", "qwen2")


@pytest.mark.parametrize(
    ("keys", "code", "text"),
    [
        ({"attention.sliding_window": None}, "model_config", "gemma3.attention.sliding_window is missing"),
        ({"attention.sliding_window": 0}, "model_feature", "attention.sliding_window = 0"),
        ({"attention.sliding_window_pattern": 0}, "model_feature", "attention.sliding_window"),
        ({"attention.sliding_window_pattern": [True, False, True]}, "model_config", "wants an integer"),
        ({"final_logit_softcapping": 30.0}, "model_feature", "final_logit_softcapping"),
        ({"attn_logit_softcapping": 50.0}, "model_feature", "attn_logit_softcapping"),
        ({"attention.scale": 0.1}, "model_feature", "attention.scale"),
        ({"attention.causal": False}, "model_feature", "attention.causal"),
        ({"rope.freq_base_swa": -1.0}, "model_config", "local_rope_theta"),
        ({"rope.freq_base_swa": "x"}, "model_config", "freq_base_swa"),
    ],
    ids=str,
)
def test_gguf_keys_refused(gemma: Path, tmp_path: Path, keys: dict[str, Any], code: str, text: str) -> None:
    path = make_tiny_gguf(gemma, tmp_path / "bad.gguf", keys={f"gemma3.{key}": value for key, value in keys.items()})
    with pytest.raises(ModelRejected) as caught:
        open_model(path)
    assert caught.value.code == code, caught.value
    assert text in caught.value.message


def test_gguf_of_gemma_by_its_keys(gemma: Path, tmp_path: Path) -> None:
    path = make_tiny_gguf(gemma, tmp_path / "a.gguf", keys={"gemma3.rope.freq_base_swa": None})
    assert open_model(path).config.local_rope_theta == 10000.0
    path = make_tiny_gguf(
        gemma,
        tmp_path / "b.gguf",
        keys={
            "gemma3.attention.sliding_window": 7,
            "gemma3.attention.sliding_window_pattern": 2,
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
        },
    )
    config = open_model(path).config
    assert (config.windows, config.rope_scaling, config.local_rope_theta) == ((7, 0, 7), LinearRope(8.0), 10000.0)
    assert (config.query_scalar, config.norm_offset) == (None, 0.0)


def test_the_scale_of_gemmas_largest_size() -> None:
    keys = {
        "block_count": 62, "context_length": 131072, "embedding_length": 5376, "feed_forward_length": 21504,
        "attention.head_count": 32, "attention.head_count_kv": 16, "attention.key_length": 128,
        "attention.value_length": 128, "attention.sliding_window": 1024, "attention.layer_norm_rms_epsilon": 1e-6,
        "vocab_size": 262144,
    }  # fmt: skip
    metadata = {"general.architecture": "gemma3"} | {f"gemma3.{key}": value for key, value in keys.items()}
    assert config_from_gguf(metadata, tied=True, name="").attention_scale == 168**-0.5
    metadata["gemma3.block_count"] = 48
    assert config_from_gguf(metadata, tied=True, name="").attention_scale == 128**-0.5


def test_a_window_in_other_files_is_refused(qwen2: Path, tmp_path: Path) -> None:
    path = make_tiny_gguf(qwen2, tmp_path / "bad.gguf", keys={"qwen2.attention.sliding_window": 128})
    with pytest.raises(ModelRejected, match=r"qwen2\.attention\.sliding_window isn't supported"):
        open_model(path)


def test_biases_must_be_those_of_the_family(qwen2: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((qwen2 / "config.json").read_text())
    tensors = load_file(qwen2 / "model.safetensors")
    layer = "model.layers.0.self_attn."

    def refused(code: str, text: str, changed: dict[str, torch.Tensor]) -> None:
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(ModelRejected) as caught:
            open_model(tmp_path)
        assert caught.value.code == code
        assert text in caught.value.message

    less = {key: value for key, value in tensors.items() if key != f"{layer}k_proj.bias"}
    refused("model_tensor_missing", "layers.0.k_proj.bias", less)
    refused("model_tensor_unknown", f"{layer}o_proj.bias", tensors | {f"{layer}o_proj.bias": torch.zeros(64)})
    refused("model_tensor_unknown", "layers.0.q_norm", tensors | {f"{layer}q_norm.weight": torch.zeros(16)})
    refused("model_shape", "layers.0.v_proj.bias", tensors | {f"{layer}v_proj.bias": torch.zeros(31)})
    config = json.loads((qwen2 / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mistral", "layer_types": None}))
    refused("model_tensor_unknown", "layers.0.q_proj.bias", tensors)
