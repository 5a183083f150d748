"""What ranks hold, in one process: parts side by side, or summed, are the whole, whatever divides and what doesn't."""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import pytest
import torch
from torch import Tensor

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.adapters.image import build_image, make_layout, spec_of
from lorad.adapters.sharded import sharded
from lorad.adapters.unpack import spec_of_image, unpack
from lorad.models.config import EMBED, ModelConfig
from lorad.models.hf_config import config_from_hf
from lorad.models.open import open_model
from lorad.models.shard import BY_INPUTS, BY_OUTPUTS, shards_of
from lorad.models.weights import Weights
from tiny import FAMILIES, make_tiny, make_tiny_gguf, tiny_config

SHAPES = [
    {"num_attention_heads": 4, "num_key_value_heads": 2},
    {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "tie_word_embeddings": False},
    {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": 1, "intermediate_size": 160},
]
PAGE_BYTES = 4096


def joined(parts: list[Tensor], axis: int, length: int) -> Tensor:
    """Parts side by side; what is beyond the whole has to be zero."""
    found = torch.cat(parts, axis)
    assert not found.narrow(axis, length, found.shape[axis] - length).any()
    return found.narrow(axis, 0, length)


def parts_are_the_whole(weights: Weights, world: int) -> None:
    shards = shards_of(weights.config, world)
    ranks = [shard.weights(weights) for shard in shards]
    assert len({shard.config for shard in shards}) == 1, "all ranks have one shape"
    for name, shape in shards[0].config.shapes().items():
        tied = name == "head" and weights.config.tie_embeddings
        whole = weights.tensor("embed" if tied else name).dequantize()
        parts = [rank.tensor(name) for rank in ranks]
        assert {part.shape for part in parts} == {shape}
        values, module = [part.dequantize() for part in parts], name.removesuffix(".bias").rpartition(".")[2]
        if module in BY_OUTPUTS:
            assert torch.equal(joined(values, 0, len(whole)), whole), name
        elif module in BY_INPUTS:
            assert torch.equal(joined(values, 1, whole.shape[1]), whole), name
        else:
            assert all(torch.equal(part, whole) for part in values), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_parts_of_weights_are_the_whole(family: str, shape: dict[str, int], tmp_path: Path) -> None:
    weights = open_model(make_tiny(tmp_path / "base", family, num_hidden_layers=1, **shape))
    for world in (2, 3, 4, 8):
        parts_are_the_whole(weights, world)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_parts_of_quantised_weights_are_the_whole(kind: str, tmp_path: Path) -> None:
    shape = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 160}
    base = make_tiny(tmp_path / "base", num_hidden_layers=1, **shape)
    weights = open_model(make_tiny_gguf(base, tmp_path / "tiny.gguf", kind))
    for world in (2, 3, 4):
        parts_are_the_whole(weights, world)
    # A rank of three has one group, 32 inputs of o: whole blocks.
    (first, *_) = shards_of(weights.config, 3)
    names = {name: first.weights(weights).tensor(f"layers.0.{name}").kind for name in ("q_proj", "o_proj", "down_proj")}
    assert set(names.values()) == {kind}


def test_a_block_on_a_border_is_widened(tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base", num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4)
    weights = open_model(make_tiny_gguf(base, tmp_path / "tiny.gguf", "Q8_0"))
    for shard in shards_of(weights.config, 4):  # one head of 16 each, blocks of 32
        assert shard.weights(weights).tensor("layers.0.o_proj").kind == "F32"
        assert shard.weights(weights).tensor("layers.0.q_proj").kind == "Q8_0"
    parts_are_the_whole(weights, 4)


def test_zero_bytes_are_zeros_of_every_type_that_is_divided_in_blocks() -> None:
    """What the last ranks are filled up with."""
    import numpy as np

    from lorad import _core

    for kind in _core.QUANT_KINDS:
        number = gguf.GGMLQuantizationType[kind]
        raw = np.zeros((2, gguf.GGML_QUANT_SIZES[number][1]), dtype=np.uint8)
        assert not gguf.dequantize(raw, number).any(), kind


def random_adapter(config: ModelConfig, seed: int) -> CheckedAdapter:
    """On every module, each with vectors or without, one of rank 0."""
    dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    modules = []
    for index, module in enumerate(config.adaptable()):
        rank = 0 if index == dice.randrange(7) else dice.randint(1, 20)
        gain, bias = (normal(module.out_features) if not rank or dice.random() < 0.5 else None for _ in range(2))
        a, b = normal(rank, module.in_features), normal(module.out_features, rank)
        layer = config.layers - 1 if module.name == "lm_head" else 0
        modules.append(ModuleLora(layer, index, rank, 0.5 + index, a, b, gain, bias))
    modules.sort(key=lambda lora: (lora.layer, lora.module))
    return CheckedAdapter("random", f"{seed + 1:032x}", "f32", tuple(modules))


def through(x: Tensor, weight: Tensor, lora: ModuleLora) -> Tensor:
    """y of a module with its adapter."""
    y = x @ weight.T + lora.scale * (x @ lora.a.T) @ lora.b.T
    y = y if lora.gain is None else y * lora.gain
    return y if lora.bias is None else y + lora.bias


@pytest.mark.parametrize("seed", range(6))
def test_parts_of_adapters_compute_what_the_whole_does(seed: int, tmp_path: Path) -> None:
    """Summed after o and down, side by side elsewhere: the sums that the base takes anyway are enough."""
    dice = random.Random(seed)
    config = config_from_hf(tiny_config(**dice.choice(SHAPES)).to_dict(), "tiny").replace(layers=2)
    world, checked = dice.choice([2, 3, 4]), random_adapter(config, seed)
    shards = shards_of(config, world)
    parts = [sharded(checked, shard) for shard in shards]
    generator = torch.Generator().manual_seed(seed)
    for at, lora in enumerate(checked.modules):
        module = config.adaptable()[lora.module]
        weight = torch.randn((module.out_features, module.in_features), generator=generator)
        x = torch.randn((3, module.in_features), generator=generator)
        wanted, found = through(x, weight, lora), []
        for shard, part in zip(shards, parts, strict=True):
            own = shard.config.adaptable()[lora.module]
            filled = torch.zeros(world * own.out_features, world * own.in_features)
            filled[: module.out_features, : module.in_features] = weight
            rows, columns = slice(None, module.out_features), slice(None, module.in_features)
            if module.name in BY_OUTPUTS:
                rows = slice(shard.rank * own.out_features, (shard.rank + 1) * own.out_features)
            if module.name in BY_INPUTS:
                columns = slice(shard.rank * own.in_features, (shard.rank + 1) * own.in_features)
            given = torch.zeros(3, world * own.in_features)
            given[:, : module.in_features] = x
            found.append(through(given[:, columns], filled[rows, columns], part.modules[at]))
        if module.name in BY_OUTPUTS:
            assert torch.allclose(joined(found, 1, module.out_features), wanted, rtol=1e-4, atol=1e-3), module.name
        elif module.name in BY_INPUTS:
            assert torch.allclose(sum(found), wanted, rtol=1e-4, atol=1e-3), module.name
        else:
            assert module.name == EMBED and all(torch.equal(part, wanted) for part in found)


def test_an_image_has_the_part_of_each_rank(config: ModelConfig) -> None:
    """One file; and the layout that a rank makes of what it's told is the same."""
    shards, checked = shards_of(config, 3), random_adapter(config, 1)
    first, *others = [sharded(checked, shard) for shard in shards]
    image = build_image(first, PAGE_BYTES, others)
    assert spec_of_image(image, shards[0].config) == spec_of(first)
    assert make_layout(spec_of(first), PAGE_BYTES).pages == image.layout.pages
    for shard, part in zip(shards, (first, *others), strict=True):
        found = list(unpack(image.of_rank(shard.rank), shard.config))
        assert [one[:4] for one in found] == [one[:4] for one in part.modules]
        for one, two in zip(found, part.modules, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one.parts(), two.parts(), strict=True))


def test_families_are_all_divided() -> None:
    """A module without a rule would be on every rank and be summed as often."""
    for family in FAMILIES:
        modules = config_from_hf(tiny_config(family).to_dict(), "tiny").adaptable()
        assert {module.name for module in modules} - BY_OUTPUTS - BY_INPUTS == {EMBED}
