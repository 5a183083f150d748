"""Adapters that are accepted: what is in force equals PEFT's, whatever the file's form; generations name content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lorad.adapters.check import CheckedAdapter
from lorad.adapters.declared_base import doubt
from lorad.adapters.image import build_image
from lorad.adapters.keys import module_path
from lorad.adapters.load import load_adapter
from lorad.errors import AdapterRejected
from lorad.models.config import MODULES
from lorad.models.open import open_model
from lorad.models.weights import Weights
from make_adapter import edit_config, edit_tensors, make_adapter
from oracle import Oracle, oracle
from tiny import make_tiny

Tensors = dict[str, torch.Tensor]
TENANTS = Path(__file__).parents[1] / "py/lorad/demo/tenants"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return open_model(make_tiny(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def reference(base: Weights) -> Oracle:
    return oracle(base.path)


def load(base: Weights, path: Path, name: str = "a", **options: Any) -> CheckedAdapter:
    return load_adapter(name, path, base.config, "digest", **options)


def in_force(base: Weights, checked: CheckedAdapter) -> Tensors:
    """scale · B · A of each adapted module by its path."""
    names = [module.name for module in base.config.modules()]
    return {
        module_path(lora.layer, names[lora.module]): lora.scale * (lora.b.float() @ lora.a.float())
        for lora in checked.modules
    }


def assert_agrees(base: Weights, reference: Oracle, path: Path, like: Path | None = None, **options: Any) -> None:
    """What would be in force equals what PEFT puts in force (for `like`, if PEFT can't read `path` itself)."""
    found, wanted = in_force(base, load(base, path, **options)), reference.deltas(like or path)
    assert set(found) == set(wanted)
    for name, delta in wanted.items():
        assert torch.allclose(found[name], delta, rtol=1e-5, atol=1e-6), name
    assert any(bool(delta.any()) for delta in wanted.values())


@pytest.mark.parametrize("rank", [1, 2, 3, 5, 7, 8, 12, 16, 24, 31, 32, 48, 64, 100, 128, 256])
def test_ranks_2_5(base: Weights, reference: Oracle, tmp_path: Path, rank: int) -> None:
    path = make_adapter(tmp_path, base.config, rank=rank, seed=rank)
    assert load(base, path).rank == rank
    assert_agrees(base, reference, path)


@pytest.mark.parametrize(
    "modules",
    [*((name,) for name in MODULES), ("q_proj", "v_proj"), ("k_proj", "v_proj"), ("gate_proj", "up_proj"), MODULES],
    ids=", ".join,
)
def test_module_subsets_2_4(base: Weights, reference: Oracle, tmp_path: Path, modules: tuple[str, ...]) -> None:
    path = make_adapter(tmp_path, base.config, modules=modules)
    assert len(load(base, path).modules) == base.config.layers * len(modules)
    assert_agrees(base, reference, path)


def test_layers_may_differ_2_4(base: Weights, reference: Oracle, tmp_path: Path) -> None:
    path = make_adapter(tmp_path, base.config, modules=r"model\.layers\.(0\.self_attn\.(q|v)_proj|2\.mlp\.down_proj)")
    assert [(lora.layer, lora.module) for lora in load(base, path).modules] == [(0, 0), (0, 2), (2, 6)]
    assert_agrees(base, reference, path)


@pytest.mark.parametrize(("rank", "alpha"), [(64, 1), (4, 64), (8, 16), (16, 16), (8, 12.5), (8, -4)])
def test_alpha_over_rank_2_2(base: Weights, reference: Oracle, tmp_path: Path, rank: int, alpha: float) -> None:
    path = make_adapter(tmp_path, base.config, rank=rank, alpha=alpha)
    assert {lora.scale for lora in load(base, path).modules} == {alpha / rank}
    assert_agrees(base, reference, path)


def test_rslora_2_1(base: Weights, reference: Oracle, tmp_path: Path) -> None:
    plain = make_adapter(tmp_path / "plain", base.config, rank=16, alpha=16)
    stabilised = make_adapter(tmp_path / "stabilised", base.config, rank=16, alpha=16)
    edit_config(stabilised, use_rslora=True)
    assert_agrees(base, reference, plain)
    assert_agrees(base, reference, stabilised)
    assert {lora.scale for lora in load(base, plain).modules} == {1.0}
    assert {lora.scale for lora in load(base, stabilised).modules} == {4.0}
    assert load(base, plain).generation != load(base, stabilised).generation


PATTERNS: dict[str, dict[str, Any]] = {
    "expression": {
        "rank_pattern": {r"model\.layers\.1\.self_attn\..*": 32},
        "alpha_pattern": {r"model\.layers\.1\.self_attn\..*": 128},
    },
    "suffix": {"rank_pattern": {"q_proj": 3, "mlp.up_proj": 5}, "alpha_pattern": {"down_proj": 7}},
    "part of a name": {"rank_pattern": {"proj": 3, "_proj": 4, "q_pro": 6}},
    "first wins": {"alpha_pattern": {"layers.0.self_attn.q_proj": 3, "q_proj": 5, ".*q_proj": 9}},
    "prefix of PEFT": {"alpha_pattern": {"base_model.model.model.layers.0.self_attn.q_proj": 3}},
    "alternatives": {"rank_pattern": {r"layers\.(?:0|2)\.(self_attn|mlp)\.(q|up)_proj": 2}},
    "no match": {"rank_pattern": {"lm_head": 4}, "alpha_pattern": {"layers.9.self_attn.q_proj": 4}},
    "anchored": {"alpha_pattern": {"^model.layers.1.mlp.gate_proj": 5, "^layers.1.mlp.up_proj": 6}},
}


@pytest.mark.parametrize("rslora", [False, True], ids=["plain", "rslora"])
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_2_3(base: Weights, reference: Oracle, tmp_path: Path, name: str, rslora: bool) -> None:
    path = make_adapter(tmp_path, base.config, rslora=rslora, **PATTERNS[name])
    assert_agrees(base, reference, path)


def test_alpha_pattern_changes_the_output_2_3(base: Weights, tmp_path: Path) -> None:
    path = make_adapter(tmp_path, base.config, **PATTERNS["expression"])
    before = load(base, path)
    assert before.rank == 32
    edit_config(path, alpha_pattern={})
    assert load(base, path).generation != before.generation


@pytest.mark.parametrize(
    ("dtype", "element"), [(torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")], ids=str
)
def test_number_types_1_3(base: Weights, reference: Oracle, tmp_path: Path, dtype: torch.dtype, element: str) -> None:
    path = make_adapter(tmp_path, base.config, dtype=dtype)
    checked = load(base, path)
    assert checked.element == element
    assert {lora.a.dtype for lora in checked.modules} == {lora.b.dtype for lora in checked.modules} == {dtype}
    assert_agrees(base, reference, path)


@pytest.mark.parametrize(
    ("halves", "element"),
    [
        ((torch.float32, torch.float16), "f32"),
        ((torch.float16, torch.bfloat16), "f32"),
        ((torch.bfloat16, torch.bfloat16), "bf16"),
    ],
    ids=str,
)
def test_mixed_number_types_are_widened_exactly_1_3(
    base: Weights, reference: Oracle, tmp_path: Path, halves: tuple[torch.dtype, torch.dtype], element: str
) -> None:
    path = make_adapter(tmp_path, base.config)
    edit_tensors(path, lambda tensors: {k: v.to(halves[int(".lora_B." in k)]) for k, v in tensors.items()})
    assert load(base, path).element == element
    assert_agrees(base, reference, path)


PREFIX = "base_model.model."
SPELLINGS: dict[str, tuple[str, Callable[[str], str]]] = {
    "5.6 no prefix": ("5.6", lambda key: key.removeprefix(PREFIX)),
    "5.6 lower case": ("5.6", lambda key: key.replace("lora_A", "lora_a").replace("lora_B", "lora_b")),
    "5.7 twice": ("5.7", lambda key: PREFIX + key),
    "5.7 adapter inside": ("5.7", lambda key: key.replace(".weight", ".default.weight")),
    "inner model": ("1.1", lambda key: key.replace(".model.model.", ".model.")),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_keys(base: Weights, reference: Oracle, tmp_path: Path, name: str) -> None:
    plain = make_adapter(tmp_path / "plain", base.config)
    path = make_adapter(tmp_path / "other", base.config)
    spell = SPELLINGS[name][1]
    edit_tensors(path, lambda tensors: {spell(key): value for key, value in tensors.items()})
    before = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}
    for file in path.iterdir():
        file.chmod(0o444)
    path.chmod(0o555)
    assert_agrees(base, reference, path, like=plain)
    assert load(base, path).generation == load(base, plain).generation
    assert {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()} == before
    path.chmod(0o755)


@pytest.mark.parametrize(
    "targets",
    [["q_proj"], "all-linear", "q_proj", r".*\.self_attn\.q_proj", None],
    ids=["list 5.4", "all-linear 5.4", "one name 5.4", "expression 5.5", "none"],
)
def test_target_modules_have_no_say(base: Weights, tmp_path: Path, targets: Any) -> None:
    plain = make_adapter(tmp_path, base.config, modules=["q_proj"])
    before = load(base, plain)
    edit_config(plain, target_modules=targets)
    assert load(base, plain).generation == before.generation


def test_all_linear_and_expressions_made_by_peft(base: Weights, reference: Oracle, tmp_path: Path) -> None:
    linear = make_adapter(tmp_path / "linear", base.config, modules="all-linear")
    assert len(load(base, linear).modules) == 7 * base.config.layers
    assert_agrees(base, reference, linear)
    some = make_adapter(tmp_path / "some", base.config, modules=r"model\.layers\.[01]\.self_attn\..*_proj")
    assert len(load(base, some).modules) == 8
    assert_agrees(base, reference, some)
    layers = make_adapter(tmp_path / "layers", base.config, layers=[0, 2], modules=["k_proj"])
    assert [lora.layer for lora in load(base, layers).modules] == [0, 2]
    assert_agrees(base, reference, layers)


def test_trainer_files_beside_the_adapter_5_10(base: Weights, tmp_path: Path) -> None:
    path = make_adapter(tmp_path, base.config)
    before = load(base, path).generation
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (path / file).write_bytes((base.path / file).read_bytes())
    last = base.config.vocab - 1
    (path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": 258, "<last>": last}))
    (path / "README.md").write_text("notes")
    (path / "optimizer.pt").write_bytes(b"")
    assert load(base, path).generation == before


def test_fields_of_a_real_config(base: Weights, tmp_path: Path) -> None:
    path = make_adapter(
        tmp_path, base.config, init_lora_weights="gaussian", lora_dropout=0.1, exclude_modules="lm_head"
    )
    before = load(base, path).generation
    edit_config(path, base_model_name_or_path="somebody/else", peft_version="0.1", future_feature=None, other=False)
    assert load(base, path).generation == before
    edit_config(path, alpha_pattern=..., rank_pattern=..., bias=..., use_rslora=..., init_lora_weights=...)
    assert load(base, path).generation == before


@pytest.mark.parametrize(
    ("declared", "base", "is_told"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Mistral 7B Instruct v0.3", True),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b-q4", False),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "Smollm2 135M 8k Lc100K Mix1 Ep2", False),
        ("/home/me/checkpoints/final", "llama", False),
        ("checkpoints/final", "llama", False),
        ("meta-llama/Llama-3.1-8B", "Llama3 8B", False),
        ("Qwen/Qwen2.5-7B", "a5f3" * 10, False),
        ("Qwen/Qwen2.5-7B", "", False),
        (None, "llama", False),
        (7, "llama", False),
    ],
)
def test_a_base_by_another_name_is_doubted(declared: object, base: str, is_told: bool) -> None:
    told = doubt(declared, base)
    assert bool(told) == is_told and all(f"{declared}" in words and base in words for words in told)


def test_the_doubt_is_told_by_a_load(base: Weights, tmp_path: Path) -> None:
    path = make_adapter(tmp_path, base.config)
    edit_config(path, base_model_name_or_path="somebody/else")
    (warning,) = load_adapter("a", str(path), replace(base.config, name="tiny llama"), "digest").warnings
    assert warning.startswith("base_model_name_or_path = 'somebody/else', the base here is 'tiny llama'")


@pytest.mark.parametrize("form", ["{}", "{}/", "./{}", "{}//", "{}/../{}"])
def test_path_forms_5_16(base: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    name = "a folder with blanks, ä and 名"
    make_adapter(tmp_path / name, base.config)
    monkeypatch.chdir(tmp_path)
    path = form.replace("{}", name)
    generations = [
        load_adapter("a", path if absolute is None else os.path.join(absolute, path), base.config, "digest").generation
        for absolute in (None, str(tmp_path), None)
    ]
    assert generations == [load(base, tmp_path / name).generation] * 3


def test_generation_is_the_content_that_is_in_force(base: Weights, tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "a", base.config, seed=1)
    first = load(base, path)
    assert len(first.generation) == 32
    assert first.tag == int(first.generation[24:], 16)
    assert load(base, path, "other name").generation == first.generation
    assert load(base, make_adapter(tmp_path / "b", base.config, seed=1)).generation == first.generation
    assert load(base, make_adapter(tmp_path / "c", base.config, seed=2)).generation != first.generation
    assert load_adapter("a", path, base.config, "another base").generation != first.generation
    edit_config(path, lora_dropout=0.3)
    assert load(base, path).generation == first.generation
    edit_tensors(path, lambda tensors: dict(reversed(tensors.items())))
    assert load(base, path).generation == first.generation
    edit_config(path, lora_alpha=17)
    assert load(base, path).generation != first.generation

    def one_bit(tensors: Tensors) -> None:
        tensors["base_model.model.model.layers.2.mlp.up_proj.lora_B.weight"].view(torch.int32)[3, 3] ^= 1

    edit_config(path, lora_alpha=16)
    assert load(base, path).generation == first.generation
    edit_tensors(path, one_bit)
    assert load(base, path).generation != first.generation


def test_generation_of_a_known_file_never_changes(base: Weights, tmp_path: Path) -> None:
    """Caches and clients keep generations: a new version of lorad must give the old ones."""

    def known(tensors: Tensors) -> None:
        for number, (key, value) in enumerate(sorted(tensors.items())):
            tensors[key] = ((torch.arange(value.numel()) + number) % 7 / 8).reshape(value.shape)

    path = edit_tensors(make_adapter(tmp_path, base.config, rank=3, modules=["q_proj", "down_proj"]), known)
    assert load(base, path).generation == "ab1e1eb3381ef293bb18bcb6b1618e32"


def test_tag_is_never_zero() -> None:
    assert CheckedAdapter("a", "1" * 24 + "0" * 8, "f32", ()).tag == 1
    assert CheckedAdapter("a", "1" * 24 + "f" * 8, "f32", ()).tag == 0xFFFFFFFF


def test_no_effect_only_if_asked_for(base: Weights, tmp_path: Path) -> None:
    path = make_adapter(tmp_path, base.config, strength=0.0)
    assert load(base, path, allow_no_effect=True).modules


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("page_bytes", [1024, 16384])
def test_image_holds_every_weight(base: Weights, tmp_path: Path, dtype: torch.dtype, page_bytes: int) -> None:
    checked = load(base, make_adapter(tmp_path, base.config, rank=19, dtype=dtype, rank_pattern={"up_proj": 3}))
    image = build_image(checked, page_bytes)
    layout, data = image.layout, np.empty((image.layout.pages, page_bytes), np.uint8)
    image.read(0, data)
    assert layout.weight_bytes == checked.bytes
    size = dtype.itemsize
    for lora in checked.modules:
        a, b = torch.zeros_like(lora.a), torch.zeros_like(lora.b.T)
        for page, offset, part, rank_begin, rows, begin, length in layout.chunks(lora.layer, lora.module):
            raw = data[page, offset : offset + rows * length * size].copy()
            chunk = torch.from_numpy(raw).view(dtype).reshape(rows, length)
            (a if part == "a" else b)[rank_begin : rank_begin + rows, begin : begin + length] = chunk
        assert torch.equal(a, lora.a)
        assert torch.equal(b.T, lora.b)


def test_image_that_ends_early_is_an_error(base: Weights, tmp_path: Path) -> None:
    image = build_image(load(base, make_adapter(tmp_path, base.config)), 1024)
    with pytest.raises(OSError, match="ends 1024 bytes early"):
        image.read(image.layout.pages - 1, np.empty((2, 1024), np.uint8))


def test_image_without_a_place_is_refused(base: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = load(base, make_adapter(tmp_path, base.config))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path / "file"))
    with pytest.raises(AdapterRejected, match=r"bytes can't be kept under \S+/file/images: Not a directory") as refused:
        build_image(checked, 1024)
    assert refused.value.code == "adapter_image"


def test_images_leave_nothing_behind(base: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = load(base, make_adapter(tmp_path / "a", base.config))
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path / "data"))
    image = build_image(checked, 1024)
    assert image.layout.pages and not list((tmp_path / "data" / "images").iterdir())


def test_greedy_texts_differ(base: Weights, reference: Oracle, tmp_path: Path) -> None:
    """The adapters that tests make are strong: base and each of them say different things."""
    prompt = [72, 101, 108, 108, 111]
    paths = [make_adapter(tmp_path / str(seed), base.config, rank=4, seed=seed) for seed in range(3)]
    answers = reference.greedy_all([(prompt, None), *((prompt, path) for path in paths), (prompt, None)], tokens=16)
    assert answers[0] == answers[4]
    assert len({answer.tokens[:4] for answer in answers}) == 4


@pytest.mark.parametrize(
    "path", sorted(path.parent for path in TENANTS.glob("*/adapter_config.json")), ids=lambda p: p.name
)
def test_the_tenants_are_in_force_as_peft_says(path: Path, smollm2_gguf: Path) -> None:
    base = open_model(smollm2_gguf)
    checked = load(base, path)
    assert checked.element == "bf16"
    config = json.loads((path / "adapter_config.json").read_text())
    assert checked.rank == max([config["r"], *config["rank_pattern"].values()])
    tensors = load_file(path / "adapter_model.safetensors")
    assert 2 * len(checked.modules) == len(tensors)
    assert checked.bytes == sum(value.nbytes for value in tensors.values())
    names = [module.name for module in base.config.modules()]
    for lora in checked.modules:
        key = f"base_model.model.{module_path(lora.layer, names[lora.module])}.lora_"
        assert torch.equal(lora.a, tensors[key + "A.weight"])
        assert torch.equal(lora.b, tensors[key + "B.weight"])
