"""Adapters that can't be applied in full: refused at load, with the tensor or field, the numbers and a stable code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lorad.adapters.load import load_adapter
from lorad.adapters.peft_config import FEATURES
from lorad.errors import AdapterRejected
from lorad.models.config import ModelConfig
from lorad.models.hf_config import config_from_hf
from make_adapter import edit_config, edit_tensors, make_adapter
from tiny import flip, make_tiny, rewrite, tiny_config

Tensors = dict[str, torch.Tensor]
Case = tuple[Callable[[Path], Any], str, tuple[str, ...]]

FILE = "adapter_model.safetensors"
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
MAGNITUDE = "lora_magnitude_vector"
LM_HEAD, EMBED = "base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight"


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return config_from_hf(tiny_config().to_dict(), "tiny")


@pytest.fixture
def adapter(config: ModelConfig, tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "adapter", config, rank=4, modules=["q_proj", "up_proj"])


def refused(path: Path, config: ModelConfig, code: str, *texts: str, **options: Any) -> str:
    with pytest.raises(AdapterRejected) as caught:
        load_adapter("mine", path, config, "digest", **options)
    message = caught.value.message
    assert caught.value.code == code, message
    assert message.startswith("adapter 'mine': ")
    for text in texts:
        assert text in message, message
    return message


def put(**tensors: torch.Tensor) -> Callable[[Path], Path]:
    """Adds tensors; `__` in a name stands for a dot."""
    return lambda path: edit_tensors(path, lambda old: old | {k.replace("__", "."): v for k, v in tensors.items()})


def named(name: str, tensor: torch.Tensor) -> Callable[[Path], Path]:
    return lambda path: edit_tensors(path, lambda old: old | {name: tensor})


def replaced(key: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], Path]:
    return lambda path: edit_tensors(path, lambda old: old | {key: change(old[key])})


def spelt(change: Callable[[str], str]) -> Callable[[Path], Path]:
    return lambda path: edit_tensors(path, lambda old: {change(key): value for key, value in old.items()})


def changed(**fields: Any) -> Callable[[Path], Path]:
    return lambda path: edit_config(path, **fields)


def bad_value(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[1, 2] = value
        return tensor

    return change


def no_effect(tensors: Tensors) -> Tensors:
    return {key: value * (".lora_B." not in key) for key, value in tensors.items()}


def moved(name: str, target: str) -> Callable[[Path], Any]:
    return lambda path: (path / name).rename(path / target)


B_KEY = KEY.replace("lora_A", "lora_B")
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


ACTIVE: dict[str, Any] = {
    "target_parameters": ["experts.gate"],
    "layer_replication": [[0, 2], [1, 3]],
    "alora_invocation_tokens": [1, 2],
    "megatron_config": {"a": 1},
    "arrow_config": {"top_k": 2},
    "kasa_config": {"a": 1},
    "monteclora_config": {"a": 1},
    "velora_config": {"a": 1},
}


@pytest.mark.parametrize("field", FEATURES)
def test_features_are_refused_by_field(field: str, adapter: Path, config: ModelConfig) -> None:
    edit_config(adapter, **{field: ACTIVE.get(field, True)})
    refused(adapter, config, "adapter_feature", f"{field} = ")
    for inactive in (None, False, [], {}):
        edit_config(adapter, **{field: inactive})
        load_adapter("mine", adapter, config, "digest")


CONFIGS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "5.11 bias": ({"bias": "most"}, "adapter_feature", ("bias = 'most'", "none, all and lora_only")),
    "trained in full, elsewhere": (
        {"modules_to_save": ["lm_head", "norm"]},
        "adapter_feature",
        ("'norm'", "only embed_tokens"),
    ),
    "trained in full, missing": ({"modules_to_save": ["lm_head"]}, "adapter_pair", ("no tensor of it",)),
    "trained in full, a text": ({"modules_to_save": "lm_head"}, "adapter_config", ("modules_to_save wants a list",)),
    "rows missing": ({"trainable_token_indices": [1]}, "adapter_pair", ("no tensor of it",)),
    "DoRA with biases of B": ({"use_dora": True, "lora_bias": True}, "adapter_feature", ("use_dora with lora_bias",)),
    "VeRA": ({"peft_type": "VERA"}, "adapter_feature", ("'VERA'", "only LORA")),
    "IA3": ({"peft_type": "IA3"}, "adapter_feature", ("'IA3'",)),
    "prompt tuning": ({"peft_type": "PROMPT_TUNING"}, "adapter_feature", ("'PROMPT_TUNING'",)),
    "no type": ({"peft_type": ...}, "adapter_feature", ("None",)),
    "PiSSA": ({"init_lora_weights": "pissa_niter_16"}, "adapter_feature", ("'pissa_niter_16'", "converts")),
    "OLoRA": ({"init_lora_weights": "olora"}, "adapter_feature", ("'olora'",)),
    "CorDA": ({"init_lora_weights": "corda"}, "adapter_feature", ("'corda'", "path_initial_model_for_weight")),
    "LoRA-GA": ({"init_lora_weights": "lora_ga"}, "adapter_feature", ("'lora_ga'", "path_initial_model_for_weight")),
    "LoftQ": ({"init_lora_weights": "loftq"}, "adapter_feature", ("'loftq'", "Serve that base")),
    "unknown start": ({"init_lora_weights": "magic"}, "adapter_feature", ("'magic'", "isn't known")),
    "start a number": ({"init_lora_weights": 1.5}, "adapter_feature", ("1.5", "isn't known")),
    "1.5 unknown field": ({"use_magic": True}, "adapter_feature", ("use_magic = True", "isn't known")),
    "r as text": ({"r": "4"}, "adapter_config", ("r wants an integer", "'4'")),
    "r zero": ({"r": 0}, "adapter_config", ("r wants",)),
    "r true": ({"r": True}, "adapter_config", ("r wants",)),
    "r fractional": ({"r": 4.5}, "adapter_config", ("r wants",)),
    "alpha null": ({"lora_alpha": None}, "adapter_config", ("lora_alpha wants a finite number",)),
    "alpha text": ({"lora_alpha": "16"}, "adapter_config", ("lora_alpha",)),
    "alpha NaN": ({"lora_alpha": float("nan")}, "adapter_config", ("lora_alpha",)),
    "alpha huge": ({"lora_alpha": 10**400}, "adapter_config", ("lora_alpha",)),
    "alpha beyond f32": ({"lora_alpha": 1e39}, "adapter_config", ("lora_alpha",)),
    "alpha beneath f32": ({"lora_alpha": 1e-60}, "adapter_no_effect", ("scale",)),
    "rslora as text": ({"use_rslora": "false"}, "adapter_config", ("use_rslora wants true or false",)),
    "dora as text": ({"use_dora": "false"}, "adapter_config", ("use_dora wants true or false",)),
    "pattern a list": ({"rank_pattern": ["q_proj"]}, "adapter_config", ("rank_pattern wants an object",)),
    "pattern value": ({"alpha_pattern": {"q_proj": "2"}}, "adapter_config", ("alpha_pattern['q_proj']",)),
    "pattern not a regex": ({"alpha_pattern": {"q_(proj": 2}}, "adapter_config", ("regular expression",)),
    "too many patterns": ({"rank_pattern": {f"a{i}": 4 for i in range(5000)}}, "adapter_config", ("5000 keys",)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(name: str, adapter: Path, config: ModelConfig) -> None:
    fields, code, texts = CONFIGS[name]
    edit_config(adapter, **fields)
    refused(adapter, config, code, *texts)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+x", "([a-z_.0-9]+)+X", "(a|a)*b", "(.|_)*z", r"(.*)*", "(a?){40}", "a?" * 64, ".*" * 20, r"(\w)\1",
        "(?=a)", "(ab?)+", "(a{1,60}){1,60}", "x" * 2000, "(" + "|".join(["a*"] * 300) + "){9}",
    ],
    ids=lambda pattern: pattern[:20],
)  # fmt: skip
def test_patterns_that_could_match_for_ever(pattern: str, adapter: Path, config: ModelConfig) -> None:
    edit_config(adapter, alpha_pattern={pattern: 3})
    began = time.monotonic()
    refused(adapter, config, "adapter_config", "alpha_pattern")
    assert time.monotonic() - began < 2


def test_the_slowest_accepted_pattern_is_quick(adapter: Path, config: ModelConfig) -> None:
    patterns = {rf"(.*){i}(.*)(q|up)(.*)": 3 for i in "XY"} | {r".*\.layers\.\d+\..*o_proj": 4}
    edit_config(adapter, alpha_pattern=patterns)
    began = time.monotonic()
    load_adapter("mine", adapter, config, "digest")
    assert time.monotonic() - began < 2


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


FILES: dict[str, Case] = {
    "5.12 no folder": (lambda path: path.rename(path.parent / "gone"), "adapter_missing", ("there is no folder",)),
    "no config": (moved("adapter_config.json", "config.json"), "adapter_missing", ("no adapter_config.json",)),
    "no tensors": (lambda path: (path / FILE).unlink(), "adapter_missing", (f"no {FILE}",)),
    "pickle": (moved(FILE, "adapter_model.bin"), "adapter_missing", ("adapter_model.bin is a pickle", "safetensors")),
    "MLX file": (
        moved(FILE, "adapters.safetensors"),
        "adapter_missing",
        ("adapter_config.json is PEFT's", "adapters."),
    ),
    "GGUF file": (moved(FILE, "adapter.gguf"), "adapter_file", ("adapter.gguf isn't a readable GGUF file",)),
    "config cut": (
        lambda path: rewrite(path / "adapter_config.json", lambda content: content[:50]),
        "adapter_config",
        ("isn't JSON",),
    ),
    "config a list": (
        lambda path: (path / "adapter_config.json").write_text("[]"),
        "adapter_config",
        ("isn't an object",),
    ),
    "config deep": (
        lambda path: (path / "adapter_config.json").write_text("[" * 100_000),
        "adapter_config",
        ("isn't JSON",),
    ),
    "config long": (
        lambda path: (path / "adapter_config.json").write_text(" " * (1 << 21)),
        "adapter_config",
        ("longer than 1048576",),
    ),
    "config a folder": (
        lambda path: ((path / "adapter_config.json").unlink(), (path / "adapter_config.json").mkdir()),
        "adapter_missing",
        ("no adapter_config.json",),
    ),
    "tensors empty": (lambda path: (path / FILE).write_bytes(b""), "adapter_file", ("cut: 0 bytes",)),
    "tensors cut": (
        lambda path: rewrite(path / FILE, lambda content: content[:-10]),
        "adapter_file",
        ("cut: its tensors end at byte",),
    ),
    "header cut": (lambda path: rewrite(path / FILE, lambda c: c[:100]), "adapter_file", ("cut: its header",)),
    "header huge": (
        lambda path: rewrite(path / FILE, lambda content: b"\xff" * 8 + content[8:]),
        "adapter_file",
        ("at most 100000000",),
    ),
    "more bytes": (lambda path: rewrite(path / FILE, lambda c: c + b"12"), "adapter_file", ("left over",)),
    "key twice": (
        lambda path: rewrite(path / FILE, lambda content: content.replace(b"layers.1.", b"layers.0.")),
        "adapter_file",
        ("is there twice",),
    ),
    "5.10 added token": (
        lambda path: (path / "added_tokens.json").write_text(json.dumps({"<new>": 320})),
        "adapter_added_tokens",
        ("320",),
    ),
    "5.10 added token in tokenizer.json": (
        lambda path: (path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 400, "content": "x"}]})),
        "adapter_added_tokens",
        ("400", "320"),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, adapter: Path, config: ModelConfig) -> None:
    change, code, texts = FILES[name]
    change(adapter)
    refused(adapter, config, code, *texts)


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


@pytest.mark.parametrize("seed", range(200))
def test_damaged_files_are_refused_or_are_other_content(seed: int, adapter: Path, config: ModelConfig) -> None:
    """Any bytes changed anywhere: a refusal or an adapter whose generation says so, never another exception."""
    rng = np.random.default_rng(seed)
    before = load_adapter("mine", adapter, config, "digest").generation
    file = adapter / (FILE if seed % 4 else "adapter_config.json")
    end = 2500 if seed % 2 else file.stat().st_size
    content = file.read_bytes()
    rewrite(file, lambda old: flip(old, rng, int(rng.integers(1, 4)), min(end, len(old))))
    try:
        after = load_adapter("mine", adapter, config, "digest")
    except AdapterRejected as refusal:
        assert refusal.code.startswith("adapter_")
        return
    weights = load_file(file) if file.name == FILE else {}
    if any(not torch.equal(value, load_before) for value, load_before in _both(content, weights)):
        assert after.generation != before


def _both(content: bytes, after: Tensors) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from safetensors.torch import load

    if not after:
        return []
    before = load(content)
    return [(value, before[key]) for key, value in after.items() if key in before]


def test_file_that_changes_between_check_and_read(
    adapter: Path, config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lorad.adapters import load as module
    from lorad.adapters.read import AdapterFiles, read_adapter

    def read_then_change(path: Path, base: ModelConfig) -> AdapterFiles:
        files = read_adapter(path, base)
        save_file({key: value[:1] for key, value in load_file(path / FILE).items()}, path / FILE)
        return files

    monkeypatch.setattr(module, "read_adapter", read_then_change)
    refused(adapter, config, "adapter_file", "changed while it was read")


def test_base_with_other_order_of_checks(config: ModelConfig, tmp_path: Path) -> None:
    """Added tokens are named as the cause even where modules_to_save would be refused too (5.9)."""
    path = make_adapter(tmp_path, config, rank=4)
    edit_config(path, modules_to_save=["lm_head", "embed_tokens"])
    edit_tensors(path, lambda old: old | {LM_HEAD: torch.ones(328, 64)})
    refused(path, config, "adapter_added_tokens", "328", "320")


def test_tiny_config_is_the_tiny_model(config: ModelConfig, tmp_path: Path) -> None:
    from lorad.models.open import open_model

    assert open_model(make_tiny(tmp_path / "tiny")).config.replace(name="") == config.replace(name="")
