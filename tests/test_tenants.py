"""The committed demo tenants: complete, consistent with their own configuration, small, and with disjoint sets."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

ROOT = Path(__file__).parents[1]
TENANTS = ROOT / "py/lorad/demo/tenants"
NAMES = sorted(path.parent.name for path in TENANTS.glob("*/tenant.json"))
BYTES_MAX = 45_000_000
LAYERS = 30
WIDTHS = {
    "q_proj": (576, 576),
    "k_proj": (576, 192),
    "v_proj": (576, 192),
    "o_proj": (576, 576),
    "gate_proj": (576, 1536),
    "up_proj": (576, 1536),
    "down_proj": (1536, 576),
}
KEY = re.compile(r"base_model\.model\.(model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+_proj))\.lora_([AB])\.weight")


def read(name: str, file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((TENANTS / name / file).read_text(encoding="utf-8"))
    return content


def heldout(name: str) -> list[dict[str, str]]:
    lines = (TENANTS / name / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def rank_of(config: dict[str, Any], module: str) -> int:
    """PEFT's rule: the first pattern that matches the end of the module's name, else r."""
    for pattern, rank in config["rank_pattern"].items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return int(rank)
    return int(config["r"])


@pytest.mark.parametrize("name", NAMES)
def test_folder_is_complete_and_names_its_licence(name: str) -> None:
    files = {path.name for path in (TENANTS / name).iterdir()}
    assert files >= {"adapter_config.json", "adapter_model.safetensors", "heldout.jsonl", "tenant.json"}
    tenant = read(name, "tenant.json")
    assert tenant["name"] == name
    for field in ("title", "description", "source", "licence"):
        assert len(tenant[field]) > 5, field
    assert 3 <= len(tenant["prompts"]) <= 4
    if "notice kept" in tenant["licence"]:
        assert "permission" in (TENANTS / name / "NOTICE").read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_what_the_configuration_says(name: str) -> None:
    config, tenant = read(name, "adapter_config.json"), read(name, "tenant.json")
    assert config["peft_type"] == "LORA"
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert config["inference_mode"] is True
    assert sorted(config["target_modules"]) == sorted(tenant["targets"])
    assert (config["r"], config["lora_alpha"]) == (tenant["rank"], tenant["alpha"])
    found = set()
    with safe_open(TENANTS / name / "adapter_model.safetensors", "pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118 - not a dict
            match = KEY.fullmatch(key)
            assert match, key
            module, layer, projection, side = match.groups()
            inner, outer = WIDTHS[projection]
            rank = rank_of(config, module)
            view = tensors.get_slice(key)
            assert view.get_dtype() == "BF16"
            assert view.get_shape() == ([rank, inner] if side == "A" else [outer, rank]), key
            found.add((int(layer), projection, side))
    assert found == {(layer, part, side) for layer in range(LAYERS) for part in tenant["targets"] for side in "AB"}


def test_the_mix_is_what_the_demo_promises() -> None:
    configs = [read(name, "adapter_config.json") for name in NAMES]
    targets = [set(config["target_modules"]) for config in configs]
    assert len(NAMES) >= 5
    assert {config["r"] for config in configs} >= {8, 16, 32}
    assert {"q_proj", "k_proj", "v_proj", "o_proj"} in targets
    assert set(WIDTHS) in targets
    assert any(config["use_rslora"] for config in configs)
    assert any(config["rank_pattern"] and config["alpha_pattern"] for config in configs)


def test_all_tenants_together_are_small() -> None:
    assert sum(path.stat().st_size for path in TENANTS.rglob("*") if path.is_file()) <= BYTES_MAX


def test_heldout_sets_are_big_enough_and_disjoint() -> None:
    seen: dict[tuple[str, str], str] = {}
    for name in NAMES:
        rows = heldout(name)
        assert 100 <= len(rows) <= 200, name
        for row in rows:
            assert row.keys() == {"prompt", "response"}
            assert row["prompt"].strip() and row["response"].strip()
            pair = (row["prompt"], row["response"])
            assert seen.setdefault(pair, name) == name, pair
        assert len({(row["prompt"], row["response"]) for row in rows}) == len(rows), name


def test_no_file_names_a_place_on_some_machine() -> None:
    for name in NAMES:
        for file in ("adapter_config.json", "tenant.json"):
            text = (TENANTS / name / file).read_text(encoding="utf-8")
            assert not re.search(r"(/home|/root|/tmp|/work|/mnt|[A-Z]:\\\\)", text), (name, file)


def test_the_recipe_trains_and_scores_all_that_ship_on_the_embedded_base(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples/tenants"))
    evaluate, train = importlib.import_module("evaluate"), importlib.import_module("train")
    base = tmp_path / "base.gguf"
    monkeypatch.setattr("lorad.demo.base.embedded_base", lambda: base)
    monkeypatch.setattr("sys.argv", ["command"])
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    trained: list[tuple[str, Path]] = []
    monkeypatch.setattr(train, "train", lambda name, file, *rest: trained.append((name, file)))
    train.main()
    assert sorted(trained) == [(name, base.resolve()) for name in NAMES]

    class Scored(Exception):
        """What stands in for the hour of scoring."""

    def bench(file: Path, names: list[str], scores: Path) -> None:
        raise Scored(file, names)

    monkeypatch.setattr(evaluate, "Bench", bench)
    with pytest.raises(Scored) as scored:
        evaluate.main()
    assert scored.value.args == (base.resolve(), NAMES)
