"""Combined adapters have PEFT's numbers."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.combine import command as combine_command
from lorad.adapters.combine.combine import FACTORS, METHODS, PRODUCTS, PRUNING, Part, Recipe, combine
from lorad.adapters.combine.interference import interference
from lorad.adapters.combine.texts import Expected, expect
from lorad.adapters.load import load_adapter
from lorad.adapters.pieces import Pieces
from lorad.adapters.write import write_peft
from lorad.cli import main
from lorad.errors import InvalidRequest
from lorad.models.open import open_model
from lorad.text.model import load_text_model
from make_adapter import make_adapter
from oracle import Oracle, load_reference
from tiny import EOS, make_tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("base") / "tiny", dtype=torch.float32)


def load(base: Path, path: Path) -> CheckedAdapter:
    weights = open_model(base)
    return load_adapter(path.name, path, weights.config, weights.digest)


def by_peft(
    base: Path, paths: list[Path], weights: list[float], folder: Path, recipe: Recipe
) -> dict[str, torch.Tensor]:
    """PEFT's result, as it saves it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, str(paths[0]), adapter_name="a0")
    for number, path in enumerate(paths[1:], 1):
        model.load_adapter(str(path), adapter_name=f"a{number}")
    dice, bernoulli = torch.Generator().manual_seed(recipe.seed), torch.bernoulli
    with pytest.MonkeyPatch.context() as patch:
        # Its own draws come from the global dice, which making the new adapter uses too.
        patch.setattr(torch, "bernoulli", lambda input: bernoulli(input, generator=dice))
        model.add_weighted_adapter(
            [f"a{number}" for number in range(len(paths))],
            weights,
            "made",
            combination_type=recipe.method,
            density=recipe.density,
            svd_rank=recipe.rank or None,
            majority_sign_method=recipe.majority,
        )
    model.save_pretrained(str(folder), selected_adapters=["made"])
    return load_file(folder / "made" / "adapter_model.safetensors")


def products(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """B A by module."""
    names = {key.split(".lora_")[0] for key in tensors}
    return {name: tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"] for name in names}


CASES = [(method, seed) for method in METHODS for seed in range(2)]


@pytest.mark.parametrize(("method", "seed"), CASES)
def test_every_method_has_pefts_numbers(base: Path, tmp_path: Path, method: str, seed: int) -> None:
    dice, config = random.Random(f"{method} {seed}"), open_model(base).config
    ranks = [4, 4, 4] if method in FACTORS else [2, 4, 8]
    sets = [["q_proj", "v_proj"], ["q_proj", "down_proj"], ["q_proj", "k_proj", "up_proj"]]
    paths = [
        make_adapter(
            tmp_path / f"a{k}", config, rank=ranks[k], alpha=dice.choice([4, 9.5, 32]), modules=sets[k], seed=k
        )
        for k in range(3)
    ]
    weights = [dice.choice([0.3, 1.0, -0.7, 2.0]) for _ in paths]
    recipe = Recipe(
        method=method,
        density=dice.choice([0.4, 0.8]) if method in PRUNING else 1.0,
        rank=6 if method in PRODUCTS and seed else 0,
        majority=dice.choice(["total", "frequency"]),
        seed=seed,
    )
    wanted = by_peft(base, paths, weights, tmp_path / "peft", recipe)
    parts = [Part(load(base, path), weight) for path, weight in zip(paths, weights, strict=True)]
    write_peft(tmp_path / "ours", Pieces(tuple(combine(parts, recipe))), config, "f32", "a test")
    ours = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    found, wished = products(ours), products(wanted)
    assert found.keys() == wished.keys()
    for name, product in wished.items():
        torch.testing.assert_close(found[name], product, rtol=1e-4, atol=1e-5, msg=name)
    made = load(base, tmp_path / "ours")
    assert {lora.scale for lora in made.modules} == {1.0}


def test_what_cant_be_combined_is_refused(base: Path, tmp_path: Path) -> None:
    config = open_model(base).config
    two = [load(base, make_adapter(tmp_path / f"r{rank}", config, rank=rank, seed=rank)) for rank in (2, 4)]
    parts = [Part(adapter, 1.0) for adapter in two]
    for method in FACTORS:
        with pytest.raises(InvalidRequest, match="'r2' has 2, 'r4' 4") as refusal:
            list(combine(parts, Recipe(method, density=0.5)))
        assert refusal.value.code == "combine_rank"
    for fields, code in (
        ({"method": "mean"}, "combine_method"),
        ({"density": 0.0}, "combine_density"),
        ({"density": float("nan")}, "combine_density"),
        ({"majority": "all"}, "combine_majority"),
        ({"rank": -1}, "combine_rank"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            Recipe(**fields)
        assert refusal.value.code == code
    with pytest.raises(InvalidRequest) as refusal:
        list(combine([Part(two[0], float("inf"))], Recipe()))
    assert refusal.value.code == "combine_weight"
    with pytest.raises(InvalidRequest, match="all are 0") as refusal:
        list(combine([Part(two[0], 0.0)], Recipe()))
    assert refusal.value.code == "combine_weight"
    with pytest.raises(InvalidRequest) as refusal:
        list(combine([], Recipe()))
    assert refusal.value.code == "combine_parts"
    huge = [Part(two[0], 1e38)]
    with pytest.raises(InvalidRequest) as refusal:
        write_peft(tmp_path / "huge", Pieces(tuple(combine(huge, Recipe()))), config, "f16", "a test")
    assert refusal.value.code == "output_range" and not (tmp_path / "huge").exists()


def test_interference(base: Path, tmp_path: Path) -> None:
    config = open_model(base).config
    first = load(base, make_adapter(tmp_path / "a", config, rank=4, seed=1, modules=["q_proj"]))
    same = load(base, make_adapter(tmp_path / "b", config, rank=4, seed=1, modules=["q_proj"], strength=0.1))
    other = load(base, make_adapter(tmp_path / "c", config, rank=4, seed=2, modules=["q_proj"]))
    apart = load(base, make_adapter(tmp_path / "d", config, rank=4, seed=2, modules=["k_proj"]))
    near, far, none = interference([first, same])[0], interference([first, other])[0], interference([first, apart])[0]
    assert near.modules == config.layers
    assert near.reads == pytest.approx(1, abs=1e-4) == near.writes and near.cosine == pytest.approx(1, abs=1e-4)
    assert far.reads < 0.3 and far.writes < 0.3 and abs(far.cosine) < 0.2
    assert none.modules == 0 and none.cosine == 0


def test_by_command(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = open_model(base).config
    first, second = (make_adapter(tmp_path / f"a{seed}", config, rank=2 + seed, seed=seed) for seed in range(2))
    output = tmp_path / "made"
    command = ["adapters", "combine", str(output), f"{first}:0.5", str(second), "--model", str(base)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "0.5 × a0, 1 × a1" in text and "experiment" in text and "overlap" in text
    assert load(base, output).rank == 5
    assert main(command) == 1 and "[output_exists]" in capsys.readouterr().err
    assert main([*command[:2], str(tmp_path / "x"), f"{first}:much", "--model", str(base)]) == 1
    assert "[option_form]" in capsys.readouterr().err


TEXTS = [{"prompt": "a b", "response": "c\u2028d"}, {"prompt": "x", "response": "yz"}, {"text": "some plain text"}]


def write_texts(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n")
    return path


def by_reference(base: Path, adapter: Path | None, rows: list[Any]) -> tuple[float, int]:
    """Perplexity by transformers and PEFT, and how many tokens count."""
    model, asked, total, count = load_text_model(base), Oracle(load_reference(base)), 0.0, 0
    for row in rows:
        if "text" in row:
            ids, begin = model.encode(row["text"]), 1
        else:
            head = model.chat([{"role": "user", "content": row["prompt"]}])
            ids, begin = [*head, *model.tokenizer.encode(row["response"], add_special_tokens=False), EOS], len(head)
        logprobs = asked.logprobs(ids[:-1], adapter)
        total += sum(float(logprobs[place - 1, ids[place]]) for place in range(begin, len(ids)))
        count += len(ids) - begin
    return math.exp(-total / count), count


def test_held_out_texts_are_expected_as_the_reference_does(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = open_model(base).config
    first, second = (make_adapter(tmp_path / f"a{seed}", config, rank=60, seed=seed) for seed in range(2))
    sets = [write_texts(tmp_path / "chats.jsonl", TEXTS[:2]), write_texts(tmp_path / "all.jsonl", TEXTS * 20)]
    command = ["adapters", "combine", str(tmp_path / "made"), f"{first}:0.5", str(second), "--model", str(base)]
    found: list[Expected] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            combine_command, "expect", lambda *given, **options: found.extend(made := expect(*given, **options)) or made
        )
        assert main([*command, *(word for path in sets for word in ("--texts", str(path)))]) == 0
    text = capsys.readouterr().out
    assert "perplexity of held-out texts" in text and "--texts" not in text
    for one, rows in zip(found, (TEXTS[:2], TEXTS), strict=True):
        models = [None, first, second, tmp_path / "made"]
        for perplexity, adapter in zip(one.perplexities.values(), models, strict=True):
            wanted, count = by_reference(base, adapter, rows)
            assert perplexity == pytest.approx(wanted, rel=5e-3) and f"{perplexity:.3f}" in text
            assert one.tokens == count * (20 if len(rows) == 3 else 1)
    assert list(found[0].perplexities) == ["", "part-1", "part-2", "together"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no texts"),
        ("{", "line 1 isn't JSON"),
        ('{"text": "a b"}\n[1]', "line 2 wants prompt and response"),
        ('{"prompt": "a"}', "line 1 wants prompt and response"),
        ('{"prompt": "a", "response": 3}', "line 1 wants prompt and response"),
        ('{"text": "a b", "prompt": "c", "response": "d"}', "line 1 wants prompt and response"),
        ('{"text": "a"}', "line 1 has no token to expect"),
        (json.dumps({"text": "ab " * 2000}), "of lines 1 to 1 can't be computed"),
        (None, "can't be read: No such file"),
    ],
)
def test_texts_that_cant_be_used(
    content: str | None, words: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = make_adapter(tmp_path / "a", open_model(base).config, rank=2)
    if content is not None:
        (tmp_path / "texts").write_text(content)
    command = ["adapters", "combine", str(tmp_path / "made"), str(adapter), "--model", str(base)]
    assert main([*command, "--texts", str(tmp_path / "texts")]) == 1
    error = capsys.readouterr().err
    assert "[texts_file]" in error and words in error and not (tmp_path / "made").exists()
