"""Merged models answer as the adapter on its base does, which is PEFT's `merge_and_unload`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lorad.adapters import merge as merge_module
from lorad.adapters.arguments import TYPES
from lorad.adapters.load import load_adapter
from lorad.adapters.merge import merge, rounding
from lorad.cli import main
from lorad.errors import InvalidRequest
from lorad.models.gguf_file import GgufWeights
from lorad.models.open import open_model
from lorad.models.rewrite import WRITABLE
from lorad.models.values import values
from lorad.models.weights import Weights
from make_adapter import edit_tensors
from oracle import Oracle, load_reference
from test_rewrite import STEPS
from tiny import WIDE, make_tiny, make_tiny_gguf
from trained_adapter import train

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def merged(weights: Weights, adapter: Path, folder: Path, **options: Any) -> Path:
    def base(name: str) -> Any:
        return values(weights, name)

    checked = load_adapter("a", adapter, weights.config, weights.digest, base=base)
    folder.mkdir()
    return merge(weights, checked, folder, links=False, **options)


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("llama", {}, {"target_modules": PROJECTIONS}),
    "dora": ("llama", {}, {"target_modules": PROJECTIONS, "use_dora": True, "r": 3}),
    "biases": ("qwen2", {}, {"target_modules": ["q_proj", "v_proj"], "bias": "all"}),
    "untied head and embedding": (
        "llama",
        {"tie_word_embeddings": False},
        {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
    ),
    "untied, in full": (
        "llama",
        {"tie_word_embeddings": False},
        {"target_modules": ["k_proj"], "modules_to_save": ["lm_head"]},
    ),
    "tokens of a tied table": ("llama", {}, {"target_modules": ["k_proj"], "trainable_token_indices": [70, 5]}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_merged_folder_is_what_peft_computes(name: str, tmp_path: Path) -> None:
    family, changes, lora = CASES[name]
    base = make_tiny(tmp_path / "base", family, **changes)
    adapter = train(base, tmp_path / "adapter", **lora)
    model = merged(open_model(base), adapter, tmp_path / "merged")
    assert not any(file.is_symlink() for file in model.iterdir()), "it stands for itself"
    ids = [5, 70, 101, 9, 33, 120, 7]
    wanted = Oracle(load_reference(base)).logprobs(ids, adapter)
    torch.testing.assert_close(Oracle(load_reference(model)).logprobs(ids), wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("family", "lora", "code"),
    [
        ("llama", {"target_modules": ["q_proj"], "lora_bias": True}, "merge_bias"),
        ("llama", {"target_modules": ["embed_tokens"]}, "merge_tied"),
        ("llama", {"target_modules": ["lm_head", "q_proj"]}, "merge_tied"),
    ],
)
def test_what_a_merged_model_cant_hold(family: str, lora: dict[str, Any], code: str, tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base", family)
    adapter = train(base, tmp_path / "adapter", **lora)
    with pytest.raises(InvalidRequest) as refusal:
        merged(open_model(base), adapter, tmp_path / "merged")
    assert refusal.value.code == code and not list((tmp_path / "merged").iterdir())


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_1"])
def test_by_command(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = make_tiny(tmp_path / "base")
    file = make_tiny_gguf(base, tmp_path / "base.gguf", kind)
    adapter = train(base, tmp_path / "adapter", target_modules=PROJECTIONS, strength=0.2)
    command = ["adapters", "merge", str(tmp_path / "made"), str(adapter), "--model", str(file)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert f"weights of {kind}" in text and "greedy tokens are the same" in text
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["base.gguf"]
    assert main(command) == 1 and "[output_exists]" in capsys.readouterr().err


@pytest.mark.parametrize("kind", WRITABLE)
def test_in_another_number_type(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Changed matrices and wider ones take it; keys, vectors and what has fewer bits stay."""
    base = make_tiny(tmp_path / "base")
    file = make_tiny_gguf(base, tmp_path / "base.gguf", "F32", modules={"v_proj": "Q4_0"}, embed="Q5_0")
    adapter = train(base, tmp_path / "adapter", target_modules=["q_proj", "down_proj"], strength=0.2)
    command = ["adapters", "merge", str(tmp_path / "made"), str(adapter), "--model", str(file)]
    assert main([*command, "--type", kind.lower()]) == 0
    text = capsys.readouterr().out
    assert f"merged into weights of {kind}" in text and "the base has" in text
    (made,) = (tmp_path / "made").iterdir()
    assert made.name == f"made-{kind}.gguf"
    old, new = open_model(file), open_model(made)
    assert new.config.replace(name="") == old.config.replace(name="")
    assert isinstance(old, GgufWeights) and isinstance(new, GgufWeights)
    assert new.metadata.items() >= old.metadata.items()
    checked = load_adapter("a", adapter, old.config, old.digest)
    changed = {f"layers.{lora.layer}.{PROJECTIONS[lora.module]}": lora for lora in checked.modules}
    cost = rounding(old, new, checked)
    for figure in (cost.of_weights, cost.of_change):
        assert f"{figure:.2g} of" in text
    off = whole = 0.0
    for name in old.config.shapes():
        before, after = old.tensor(name), new.tensor(name)
        wanted = before.dequantize()
        if name in changed:
            assert after.kind == kind
            wanted = wanted + changed[name].scale * (changed[name].b.float() @ changed[name].a.float())
            off += float((after.dequantize() - wanted).square().sum())
            whole += float(wanted.square().sum())
        elif len(before.shape) == 1 or name.endswith("v_proj") or name == "embed":
            assert after.kind == before.kind and (after.raw == before.raw).all()
        else:
            assert after.kind == kind, name
        assert (after.dequantize() - wanted).abs().max() <= STEPS[after.kind] * wanted.abs().max(), name
    assert cost.of_weights == pytest.approx((off / whole) ** 0.5, rel=1e-3, abs=1e-9)


def test_the_table_takes_no_less_than_eight_bits(tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base", tie_word_embeddings=False)
    file = make_tiny_gguf(base, tmp_path / "base.gguf", "F16")
    adapter = train(base, tmp_path / "adapter", target_modules=["lm_head", "q_proj"])
    edit_tensors(adapter, lambda old: {key: value for key, value in old.items() if "base_layer" not in key})
    model = open_model(merged(open_model(file), adapter, tmp_path / "merged", kind="Q4_1"))
    assert {name: model.tensor(name).kind for name in ("embed", "head", "layers.0.q_proj", "layers.2.up_proj")} == {
        "embed": "Q8_0",
        "head": "Q8_0",
        "layers.0.q_proj": "Q4_1",
        "layers.2.up_proj": "Q4_1",
    }


def test_types_that_are_only_read_are_merged_into_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = make_tiny(tmp_path / "base", **WIDE)
    file = make_tiny_gguf(base, tmp_path / "base.gguf", "Q4_K", embed="Q8_0")
    adapter = train(base, tmp_path / "adapter", target_modules=["q_proj"], strength=0.2)
    command = ["adapters", "merge", str(tmp_path / "made"), str(adapter), "--model", str(file)]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "[merge_type]" in error and "by --type: F32, F16" in error
    assert main([*command, "--type", "q8_0"]) == 0
    made = open_model(tmp_path / "made" / "made-Q8_0.gguf")
    assert made.tensor("layers.0.q_proj").kind == "Q8_0" and made.tensor("layers.0.k_proj").kind == "Q4_K"


def test_types_that_a_base_cant_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = make_tiny(tmp_path / "base", intermediate_size=80)
    adapter = train(base, tmp_path / "adapter", target_modules=["q_proj"])
    for model, words in (
        (base, "GGUF files only"),
        (make_tiny_gguf(base, tmp_path / "base.gguf"), "down_proj has rows of 80, Q8_0 wants whole blocks of 32"),
    ):
        command = ["adapters", "merge", str(tmp_path / "made"), str(adapter), "--model", str(model), "--type", "q8_0"]
        assert main(command) == 1
        error = capsys.readouterr().err
        assert "[merge_type]" in error and words in error and not (tmp_path / "made").exists()


def test_the_types_that_can_be_asked_for_are_those_that_are_written() -> None:
    assert tuple(kind.upper() for kind in TYPES) == WRITABLE


def test_a_merge_that_fails_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = make_tiny(tmp_path / "base")
    adapter = train(base, tmp_path / "adapter", target_modules=["embed_tokens"])
    assert main(["adapters", "merge", str(tmp_path / "made"), str(adapter), "--model", str(base)]) == 1
    assert "[merge_tied]" in capsys.readouterr().err and not (tmp_path / "made").exists()


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_a_wrong_merge_is_noticed(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_tiny(tmp_path / "base")
    file = make_tiny_gguf(base, tmp_path / "base.gguf", kind)
    adapter = train(base, tmp_path / "adapter", target_modules=PROJECTIONS, strength=0.2)
    right = merge_module.merged_weight
    monkeypatch.setattr(merge_module, "merged_weight", lambda weight, lora, module: right(weight, lora, module).flip(0))
    assert main(["adapters", "merge", str(tmp_path / "made"), str(adapter), "--model", str(file)]) == 1
    assert "[merge_verify]" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"base", "base.gguf", "adapter"}


def test_a_place_that_cant_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = make_tiny(tmp_path / "base")
    adapter = train(base, tmp_path / "adapter", target_modules=["q_proj"])
    for command in (
        ["merge", "/proc/nowhere/x", str(adapter), "--model", str(base)],
        ["combine", "/proc/nowhere/x", str(adapter), "--model", str(base)],
    ):
        assert main(["adapters", *command]) == 1
        assert "[output_write]" in capsys.readouterr().err
