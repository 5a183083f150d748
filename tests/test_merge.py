"""Merged models answer as the adapter on its base does, which is PEFT's `merge_and_unload`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lorad.adapters import merge as merge_module
from lorad.adapters.load import load_adapter
from lorad.adapters.merge import merge
from lorad.cli import main
from lorad.errors import InvalidRequest
from lorad.models.open import open_model
from lorad.models.values import values
from lorad.models.weights import Weights
from oracle import Oracle, load_reference
from tiny import make_tiny, make_tiny_gguf
from trained_adapter import train

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def merged(weights: Weights, adapter: Path, folder: Path) -> Path:
    def base(name: str) -> Any:
        return values(weights, name)

    checked = load_adapter("a", adapter, weights.config, weights.digest, base=base)
    folder.mkdir()
    return merge(weights, checked, folder, links=False)


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
    right = merge_module._weight
    monkeypatch.setattr(merge_module, "_weight", lambda weight, lora, module: right(weight, lora, module).flip(0))
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
