"""What adapter_config.json says is adapted, held against the tensors: contradictions are refused, gaps are told."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from lorad.adapters.keys import path_in_model
from lorad.adapters.load import load_adapter
from lorad.adapters.regular import NotRegular, Regular
from lorad.adapters.targets import Targets
from lorad.errors import AdapterRejected
from lorad.models.config import ModelConfig
from make_adapter import edit_config, edit_tensors
from other_formats import UNSLOTH
from tiny import make_tiny

PATHS = [
    prefix + f"layers.{layer}.{module}"
    for prefix in ("model.", "", "base_model.model.model.")
    for layer in (0, 1, 2, 11)
    for module in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj")
] + ["lm_head", "model.embed_tokens"]


TARGETS: list[Any] = [
    ["q_proj"],
    ["q_proj", "mlp.up_proj", "lm_head"],
    ["model.layers.0.self_attn.q_proj", "layers.1.mlp.up_proj"],
    ["proj", "layers"],
    [],
    r".*q_proj",
    r".*\.(q|up)_proj",
    r"model\.layers\.(0|11)\..*",
    r"model\.layers\.\d\.(self_attn|mlp)\.(?:q_proj|up_proj)$",
    r"^(?!x)y",
    UNSLOTH,
]
EXCLUDED: list[Any] = [None, [], ["q_proj"], ["layers.0.self_attn.q_proj", "lm_head"], r".*layers\.1.*", r".*embed.*"]
LAYERS: list[Any] = [None, [], 1, [0, 2], [11]]
LAYER_PATTERNS: list[Any] = [None, [], "layers", ["h", "layers"], ["h"], "model.layers"]


def test_agrees_with_peft_on_every_path() -> None:
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    compared = 0
    for targets, excluded, layers, pattern in itertools.product(TARGETS, EXCLUDED, LAYERS, LAYER_PATTERNS):
        fields = {
            "target_modules": targets,
            "exclude_modules": excluded,
            "layers_to_transform": layers,
            "layers_pattern": pattern,
        }
        try:
            peft = LoraConfig(**fields)
        except ValueError:
            peft = None
        try:
            ours = Targets(fields)
        except AdapterRejected as refusal:
            assert refusal.code == "adapter_config"
            assert peft is None or (layers == [] and pattern), fields
            continue
        if not ours.known:
            assert targets == r"^(?!x)y"
            continue
        for path in PATHS if peft is not None else ():
            if isinstance(targets, str) and re.fullmatch("[a-z_]+", targets):
                continue
            wanted = bool(check_target_module_exists(peft, path))
            assert (ours.why_not(path) is None) == wanted, (fields, path)
            compared += 1
    assert compared > 10_000


@pytest.mark.parametrize("seed", range(20))
def test_expressions_match_as_re_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = ["a", "b", ".", r"\.", "_", "[ab]", "[^a]", r"\w", r"\d", r"\b", "^", "$", "[0-9_]", r"\W", "x", "[^\\w.]"]

    def expression(depth: int) -> str:
        way = rng.integers(0, 7 if depth else 1)
        if way <= 1:
            return str(rng.choice(parts))
        if way == 2:
            return expression(depth - 1) + expression(depth - 1)
        if way == 3:
            return f"(?:{expression(depth - 1)}|{expression(depth - 1)})"
        if way == 4:
            return f"({expression(depth - 1)})" + str(rng.choice(["?", "{1,2}", "{2}", "{0,3}", "??"]))
        return f"(?:{expression(depth - 1)})" + str(rng.choice(["*", "+", "*?", "{1,}"]))

    for _ in range(150):
        text = expression(3)
        try:
            wanted = re.compile(text)
        except re.error:
            with pytest.raises(ValueError):
                Regular(text)
            continue
        ours = Regular(text)
        for _ in range(20):
            path = "".join(rng.choice(list("ab._1x")) for _ in range(int(rng.integers(0, 7))))
            assert ours.fullmatch(path) == bool(wanted.fullmatch(path)), (text, path)


@pytest.mark.parametrize(
    "text",
    [
        "(?=a)", r"(a)\1", "(?i)a", "(?i:a)", "((a{1,200}){1,200}){1,9}", "(?<!b)a", "(?>a)", "a" * 20_000,
        "[" + "".join(map(chr, range(1000, 2000, 2))) + "]",
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_is_not_followed(text: str) -> None:
    with pytest.raises(NotRegular):
        Regular(text)


@pytest.mark.parametrize("text", ["(a+)+x", "(a|a)*b", "(.|_)*z", "(a?){40}" * 20, ".*" * 200, "((a*)*)*"])
def test_hostile_expressions_end_soon(text: str, adapter: Path, config: ModelConfig) -> None:
    edit_config(adapter, target_modules=f"{text}|.*_proj")
    began = time.monotonic()
    load_adapter("mine", adapter, config, "digest")
    assert time.monotonic() - began < 20


def test_expression_that_takes_too_long_is_given_up(
    adapter: Path, config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lorad.adapters.regular.STEPS_MAX", 50)
    edit_config(adapter, target_modules=".*_proj")
    (warning,) = load_adapter("mine", adapter, config, "digest").warnings
    assert "too involved to be compared" in warning


ACCEPTED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "as it is": ({}, ()),
    "nothing said": ({"target_modules": None}, ()),
    "all-linear": ({"target_modules": "all-linear"}, ("adapts 15 modules", "layers.0.self_attn.k_proj, ")),
    "Unsloth": ({"target_modules": UNSLOTH}, ("adapts 15 modules",)),
    "more modules": ({"target_modules": ["q_proj", "up_proj", "k_proj"]}, ("3 modules", "layers.2.self_attn.k_proj")),
    "the output too": ({"target_modules": ["q_proj", "up_proj", "lm_head"]}, ("a module", "(lm_head)")),
    "unknown name": ({"target_modules": ["q_proj", "up_proj", "c_attn"]}, ("nothing in the base has: c_attn",)),
    "lookahead": ({"target_modules": "(?=.*)x"}, ("target_modules is too involved",)),
    "exclude others": ({"exclude_modules": ["lm_head", "k_proj"]}, ()),
    "all layers": ({"layers_to_transform": [0, 1, 2]}, ()),
    "all layers by name": ({"layers_to_transform": [0, 1, 2], "layers_pattern": "layers"}, ()),
    "pattern of nothing": ({"alpha_pattern": {"k_proj": 3}}, ("alpha_pattern has 'k_proj'", "decides nothing")),
    "hidden pattern": (
        {"alpha_pattern": {"q_proj": 3, "self_attn.q_proj": 4}},
        ("alpha_pattern has 'self_attn.q_proj'",),
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_with_warnings(name: str, adapter: Path, config: ModelConfig) -> None:
    fields, texts = ACCEPTED[name]
    edit_config(adapter, **fields)
    checked = load_adapter("mine", adapter, config, "digest")
    assert len(checked.modules) == 6
    assert len(checked.warnings) == (1 if texts else 0), checked.warnings
    for text in texts:
        assert text in checked.warnings[0]


def test_warnings_reach_who_loads(adapter: Path, tmp_path: Path) -> None:
    from lorad import Engine
    from lorad.engine.messages import AdapterInfo
    from lorad.server.run import describe_adapter

    engine = Engine(str(make_tiny(tmp_path / "base")), kv_cache_memory_bytes=1 << 20, max_num_seqs=2)
    assert engine.load_adapter("a", str(adapter)).warnings == ()
    edit_config(adapter, target_modules="all-linear")
    info = engine.load_adapter("b", str(adapter))
    engine.close()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=AdapterInfo) == info
    first, second = describe_adapter(info).splitlines()
    assert first.startswith("adapter b: rank 4, 6 modules")
    assert second.startswith(
        "adapter b: warning: adapter_config.json adapts 15 modules that the file has no tensors of"
    )


REFUSED: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "not named": ({"target_modules": ["q_proj"]}, "adapter_target", ("mlp.up_proj.lora_A", "doesn't name it", "PEFT")),
    "not matched": ({"target_modules": r".*\.up_proj"}, "adapter_target", ("q_proj.lora_A", "doesn't name it")),
    "none named": ({"target_modules": []}, "adapter_target", ("target_modules = []",)),
    "excluded": ({"exclude_modules": ["up_proj"]}, "adapter_target", ("up_proj", "exclude_modules = ['up_proj']")),
    "excluded by expression": (
        {"exclude_modules": r"model\.layers\.1\..*"},
        "adapter_target",
        ("layers.1.", "exclude_modules"),
    ),
    "another layer": (
        {"layers_to_transform": [0, 2]},
        "adapter_target",
        ("layers.1.self_attn.q_proj", "layers_to_transform = [0, 2]"),
    ),
    "one layer": ({"layers_to_transform": 1}, "adapter_target", ("layers.0.", "layers_to_transform = [1]")),
    "another list of layers": (
        {"layers_to_transform": [0, 1, 2], "layers_pattern": ["h"]},
        "adapter_target",
        ("layers.0.", "layers_to_transform"),
    ),
    "targets of numbers": ({"target_modules": [1]}, "adapter_config", ("target_modules wants", "[1]")),
    "targets an object": ({"target_modules": {"a": 1}}, "adapter_config", ("target_modules wants",)),
    "exclude a number": ({"exclude_modules": 3}, "adapter_config", ("exclude_modules wants", "is 3")),
    "layers as text": ({"layers_to_transform": "0"}, "adapter_config", ("layers_to_transform wants", "'0'")),
    "layers true": ({"layers_to_transform": [True]}, "adapter_config", ("layers_to_transform wants",)),
    "layers and one text": (
        {"target_modules": ".*proj", "layers_to_transform": [0]},
        "adapter_config",
        ("layers_to_transform", "list of target_modules"),
    ),
    "pattern alone": ({"layers_pattern": "layers"}, "adapter_config", ("layers_pattern wants layers_to_transform",)),
    "pattern an expression": (
        {"layers_pattern": "(a+)+", "layers_to_transform": [0]},
        "adapter_config",
        ("layers_pattern wants plain names",),
    ),
    "not an expression": ({"target_modules": "q_(proj"}, "adapter_config", ("isn't a regular expression",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused(name: str, adapter: Path, config: ModelConfig) -> None:
    fields, code, texts = REFUSED[name]
    edit_config(adapter, **fields)
    with pytest.raises(AdapterRejected) as caught:
        load_adapter("mine", adapter, config, "digest")
    assert caught.value.code == code, caught.value.message
    for text in texts:
        assert text in caught.value.message


def test_paths_are_those_that_peft_saw(adapter: Path, config: ModelConfig) -> None:
    """Of an adapter on the inner model, `^layers` begins a path; of one on the whole model it doesn't."""
    edit_config(adapter, alpha_pattern={r"^layers\.1\.mlp\.up_proj": 5}, target_modules=r"layers\.\d\..*proj")
    with pytest.raises(AdapterRejected, match="doesn't name it"):
        load_adapter("mine", adapter, config, "digest")
    edit_tensors(adapter, lambda old: {key.replace(".model.model.", ".model."): value for key, value in old.items()})
    checked = load_adapter("mine", adapter, config, "digest")
    scales = {(lora.layer, lora.module): lora.scale for lora in checked.modules}
    assert scales[1, 5] == 5 / 4 and scales[0, 5] == scales[1, 0] == 4
    assert checked.warnings and "adapts 15 modules" in checked.warnings[0]
    edit_config(adapter, target_modules=["q_proj", "up_proj"], exclude_modules=r"layers\.1\..*")
    with pytest.raises(AdapterRejected, match="exclude_modules"):
        load_adapter("mine", adapter, config, "digest")
    edit_config(adapter, exclude_modules=None, target_modules=r"model\.layers\..*_proj")
    load_adapter("mine", adapter, config, "digest")


@pytest.mark.parametrize(
    ("key", "spelt", "usual"),
    [
        ("base_model.model.model.layers.1.mlp.up_proj.lora_A.weight", "model.layers.1.mlp.up_proj", ""),
        ("base_model.model.layers.1.mlp.up_proj.lora_A.weight", "layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj"),
        ("layers.1.mlp.up_proj.lora_a.x.weight", "model.layers.1.mlp.up_proj", ""),
        (
            "base_model.model.base_model.model.model.layers.1.mlp.up_proj.lora_B.weight",
            "base_model.model.model.layers.1.mlp.up_proj",
            "model.layers.1.mlp.up_proj",
        ),
        ("base_model.model.lm_head.lora_A.weight", "lm_head", ""),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "model.embed_tokens", ""),
        ("base_model.model.embed_tokens.lora_embedding_A", "embed_tokens", "model.embed_tokens"),
    ],
)
def test_paths_of_keys(key: str, spelt: str, usual: str) -> None:
    assert path_in_model(key) == (spelt, usual or spelt)


def test_many_prefixes_are_no_spelling(adapter: Path, config: ModelConfig) -> None:
    edit_tensors(adapter, lambda old: {"base_model.model." * 3000 + key: value for key, value in old.items()})
    with pytest.raises(AdapterRejected, match="corresponds to nothing in the base"):
        load_adapter("mine", adapter, config, "digest")
