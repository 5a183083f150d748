"""Adapters in several files, and in floats of 8 bits: the same content in force, or a refusal that names the cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lorad.adapters.load import load_adapter
from lorad.adapters.shards import EIGHT_BITS
from lorad.errors import AdapterRejected
from lorad.models.config import ModelConfig
from make_adapter import edit_tensors
from other_formats import to_shards

FILE, INDEX = "adapter_model.safetensors", "adapter_model.safetensors.index.json"
FIRST, SECOND = "adapter_model-00001-of-00002.safetensors", "adapter_model-00002-of-00002.safetensors"


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_are_the_same_adapter_5_18(parts: int, adapter: Path, config: ModelConfig) -> None:
    before = load_adapter("mine", adapter, config, "digest")
    after = load_adapter("mine", to_shards(adapter, parts), config, "digest")
    assert after.generation == before.generation


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        index = json.loads((path / INDEX).read_text())
        changed = change(index["weight_map"])
        (path / INDEX).write_text(json.dumps(index if changed is None else changed))

    return write


def moved_tensor(path: Path) -> None:
    first, second = load_file(path / FIRST), load_file(path / SECOND)
    key = next(iter(first))
    save_file(second | {key: first[key]}, path / SECOND)


KEY = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
REFUSED: dict[str, tuple[Callable[[Path], Any], str, tuple[str, ...]]] = {
    "no index": (lambda path: (path / INDEX).unlink(), "adapter_split", (FIRST, "2 here", "index", "missing")),
    "a part is missing": (lambda path: (path / SECOND).unlink(), "adapter_split", (SECOND, "is missing")),
    "one file too": (
        lambda path: save_file(load_file(path / FIRST), path / FILE),
        "adapter_split",
        ("both adapter_model.safetensors and",),
    ),
    "a part more": (
        lambda path: save_file({}, path / "adapter_model-00003-of-00003.safetensors"),
        "adapter_split",
        ("adapter_model-00003-of-00003.safetensors looks like a part", "doesn't name it"),
    ),
    "the index lacks a tensor": (edited(lambda places: places.pop(KEY) and None), "adapter_split", (KEY, "holds")),
    "the index names another tensor": (
        edited(lambda places: places.update({"x.lora_A.weight": FIRST})),
        "adapter_split",
        ("lacks the tensor x.lora_A.weight",),
    ),
    "a tensor twice": (moved_tensor, "adapter_split", ("is in", SECOND, "a part before it")),
    "index of another count": (
        edited(lambda places: {"weight_map": {key: FIRST for key in places}}),
        "adapter_split",
        ("names 1 files", "is of 2"),
    ),
    "index out of the folder": (
        edited(lambda places: places.update({KEY: "../" + FIRST})),
        "adapter_split",
        ("'../adapter_model-00001-of-00002.safetensors'",),
    ),
    "index of something else": (
        edited(lambda places: places.update({KEY: "model.safetensors"})),
        "adapter_split",
        ("names the file 'model.safetensors'",),
    ),
    "index of numbers": (edited(lambda places: places.update({KEY: 1})), "adapter_split", ("no weight_map",)),
    "index empty": (edited(lambda places: {}), "adapter_split", ("no weight_map",)),
    "index a list": (lambda path: (path / INDEX).write_text("[]"), "adapter_split", ("no weight_map",)),
    "index cut": (lambda path: (path / INDEX).write_text("{"), "adapter_config", (f"{INDEX} isn't JSON",)),
    "a part is cut": (
        lambda path: (path / SECOND).write_bytes((path / SECOND).read_bytes()[:-3]),
        "adapter_file",
        (SECOND, "cut"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_do_not_belong_together_5_18(name: str, adapter: Path, config: ModelConfig) -> None:
    change, code, texts = REFUSED[name]
    change(to_shards(adapter))
    refused(adapter, config, code, *texts)


def refused(path: Path, config: ModelConfig, code: str, *texts: str) -> None:
    with pytest.raises(AdapterRejected) as caught:
        load_adapter("mine", path, config, "digest")
    assert caught.value.code == code, caught.value.message
    for text in texts:
        assert text in caught.value.message


def test_too_many_parts(adapter: Path, config: ModelConfig) -> None:
    places = {str(part): f"adapter_model-{part:05}-of-02000.safetensors" for part in range(2000)}
    edited(lambda old: {"weight_map": places})(to_shards(adapter))
    refused(adapter, config, "adapter_split", "2000 files", "at most 1024")


@pytest.mark.parametrize("eight", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize(
    ("other", "element"), [(None, "bf16"), (torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")]
)
def test_eight_bits_are_widened_exactly(
    eight: torch.dtype, other: torch.dtype | None, element: str, adapter: Path, config: ModelConfig
) -> None:
    def narrowed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        rounded = {key: value.to(eight) for key, value in tensors.items()}
        return rounded | ({} if other is None else {KEY: tensors[KEY].to(other)})

    edit_tensors(adapter, narrowed)
    checked = load_adapter("mine", adapter, config, "digest")
    assert checked.element == element
    stored = load_file(adapter / FILE)
    for lora in checked.modules:
        key = f"layers.{lora.layer}." + ("self_attn.q_proj" if lora.module == 0 else "mlp.up_proj")
        assert torch.equal(lora.a.float(), stored[f"base_model.model.model.{key}.lora_A.weight"].float())
        assert torch.equal(lora.b.float(), stored[f"base_model.model.model.{key}.lora_B.weight"].float())


@pytest.mark.parametrize("name", EIGHT_BITS.values())
@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_hold_every_float_of_eight(name: str, wide: torch.dtype) -> None:
    values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
    assert torch.equal(values.to(wide).float().nan_to_num(7.0), values.float().nan_to_num(7.0))


def test_nan_of_eight_bits_is_found(adapter: Path, config: ModelConfig) -> None:
    def one_nan(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors[KEY][0, 0] = float("nan")
        return {key: value.to(torch.float8_e4m3fn) for key, value in tensors.items()}

    refused(edit_tensors(adapter, one_nan), config, "adapter_not_finite", KEY)


@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv", "_scales"])
def test_scaled_eight_bits_are_refused(suffix: str, adapter: Path, config: ModelConfig) -> None:
    edit_tensors(adapter, lambda tensors: tensors | {KEY + suffix: torch.ones(1)})
    refused(adapter, config, "adapter_feature", KEY + suffix, "scale", "Save the adapter in bf16")
