"""Configs that can't be applied in full: refused at load, with the field and its value."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from lorad.adapters.load import load_adapter
from lorad.adapters.peft_config import FEATURES
from lorad.models.config import ModelConfig
from make_adapter import edit_config
from refusing import refused

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
