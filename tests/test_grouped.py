"""GPTQ and AWQ folders: weights as their formats define them, answers as transformers' + PEFT's on the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from four_bits import Grouped
from gpu_engine import gpu_engine
from grouped_folder import grouped_folder, rounded, stored
from lorad import Engine
from lorad.errors import ModelRejected
from lorad.models.grouped import GroupedTensor, Part
from lorad.models.grouped_config import GroupedFormat, grouped_format
from lorad.models.open import open_model
from lorad.models.safetensors_file import Entry
from make_adapter import make_adapter
from oracle import oracle
from tiny import make_tiny

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
NAMES = {torch.int32: "I32", torch.float16: "F16", torch.float32: "F32", torch.bfloat16: "BF16"}


def tensor_of(grouped: Grouped, method: str, less: int, g_idx: torch.Tensor | None = None) -> GroupedTensor:
    """As if it had come from a file."""
    parts = {}
    for name, tensor in stored(grouped, method, less, g_idx).items():
        data = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
        parts[name] = Part(Entry(NAMES[tensor.dtype], tuple(tensor.shape), 0, len(data)), data)
    inputs, outputs = grouped.codes.shape
    return GroupedTensor("w", GroupedFormat(method, grouped.group, less), (outputs, inputs), parts)


def parts_of(tensors: dict[str, np.ndarray]) -> dict[str, Part]:
    kinds = {"int32": "I32", "float16": "F16"}
    return {
        name: Part(Entry(kinds[tensor.dtype.name], tensor.shape, 0, tensor.nbytes), tensor.view(np.uint8).reshape(-1))
        for name, tensor in tensors.items()
    }


def test_a_gptq_weight_by_hand() -> None:
    """Columns 0 to 7 of row 0 are the half bytes of its first word, from the lowest; its zero is stored less one."""
    qweight = np.zeros((4, 8), dtype=np.int32)
    qweight[0, 0] = 0x76543210
    parts = {
        "qweight": qweight,
        "qzeros": np.full((1, 1), 0x22222222, dtype=np.int32),
        "scales": np.full((1, 8), 0.5, dtype=np.float16),
    }
    raw = GroupedTensor("w", GroupedFormat("gptq", 32, 1), (8, 32), parts_of(parts)).raw()
    assert raw.kind == "Q4_1"
    assert raw.values()[0, :8].tolist() == [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0]
    assert (raw.values()[1:] == -1.5).all()


def test_an_awq_weight_by_hand() -> None:
    """Rows 0 to 7 at column 0 are the half bytes 0, 2, 4, 6, 1, 3, 5, 7 in the order 0, 4, 1, 5, 2, 6, 3, 7."""
    qweight = np.zeros((32, 1), dtype=np.int32)
    qweight[0, 0] = 0x76543210
    parts = {
        "qweight": qweight,
        "qzeros": np.zeros((1, 1), dtype=np.int32),
        "scales": np.ones((1, 8), dtype=np.float16),
    }
    raw = GroupedTensor("w", GroupedFormat("awq", 32, 0), (8, 32), parts_of(parts)).raw()
    assert raw.values()[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize(("inputs", "group"), [(64, 32), (256, 128), (192, 128), (320, 64), (96, 0)])
@pytest.mark.parametrize(("method", "less"), [("gptq", 1), ("gptq", 0), ("awq", 0)])
def test_random_weights(method: str, less: int, inputs: int, group: int) -> None:
    grouped = Grouped.of(torch.Generator().manual_seed(inputs), 40, inputs, group, less)
    raw = tensor_of(grouped, method, less).raw()
    floats, step = grouped.floats.numpy(), grouped.scales.float().amax().item()
    assert raw.kind == "Q4_1" and raw.shape == floats.shape
    assert np.abs(raw.values() - floats).max() <= step / 128
    assert (raw.values() == gguf.dequantize(raw.raw, gguf.GGMLQuantizationType.Q4_1)).all()


@pytest.mark.parametrize("group", [32, 128, 0])
def test_symmetric_weights_are_held_exactly(group: int) -> None:
    weight = torch.randn(24, 256, generator=torch.Generator().manual_seed(group))
    grouped = rounded(weight, group, symmetric=True)
    raw = tensor_of(grouped, "gptq", 1, torch.arange(256) // (group or 256)).raw()
    assert raw.kind == "Q4_0"
    assert (raw.values() == grouped.floats.numpy()).all()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_scales_of_other_types(kind: torch.dtype) -> None:
    grouped = rounded(torch.randn(24, 128, generator=torch.Generator().manual_seed(2)), 64, symmetric=True)
    grouped = grouped._replace(scales=grouped.scales.to(kind))
    raw = tensor_of(grouped, "gptq", 1).raw()
    assert np.allclose(raw.values(), grouped.floats.numpy(), rtol=2**-11, atol=0)


def test_columns_in_an_order_of_their_own_are_kept_as_f16() -> None:
    grouped = Grouped.of(torch.Generator().manual_seed(3), 16, 128, 32, 1)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(4))
    raw = tensor_of(grouped._replace(codes=grouped.codes[order]), "gptq", 1, (torch.arange(128) // 32)[order]).raw()
    assert raw.kind == "F16"
    assert np.allclose(raw.dequantize().numpy(), grouped.floats.numpy()[:, order], rtol=2**-11, atol=1e-7)


@pytest.mark.parametrize(
    ("quantization", "options", "kind"),
    [
        (GPTQ, {"symmetric": True}, "Q4_0"),
        ({**GPTQ, "group_size": -1, "checkpoint_format": "gptq_v2"}, {}, "Q4_1"),
        ({**GPTQ, "desc_act": True}, {"act_order": True}, "F16"),
        (AWQ, {}, "Q4_1"),
    ],
    ids=["symmetric", "v2", "act-order", "awq"],
)
@pytest.mark.parametrize("device", ["cpu", "integers", "gpu"])
def test_answers_are_the_references(
    quantization: dict[str, Any], options: dict[str, Any], kind: str, device: str, base: Path, tmp_path: Path
) -> None:
    packed, floats = grouped_folder(base, tmp_path, quantization, **options)
    weights = open_model(packed)
    assert weights.tensor("layers.1.down_proj").kind == kind
    adapter = make_adapter(tmp_path / "adapter", weights.config, rank=4, modules=["q_proj", "down_proj"])
    if device == "gpu":
        engine = gpu_engine(packed, {"a": adapter}, max_num_seqs=4, block_size=8)
    else:
        floating = {"dequantize": True, "dtype": "float32"} if device == "cpu" else {}
        engine = Engine(str(packed), kv_cache_memory_bytes=4 << 20, max_num_seqs=4, **floating)
        engine.load_adapter("a", str(adapter))
    prompts = [([5, 6, 7, 8, n], name) for n in range(3) for name in ("", "a")]
    asked = [engine.add(p, name, max_tokens=12, logprobs=0, stop_token_ids=()) for p, name in prompts]
    while engine.step() is not None:
        pass
    # Weights of Q4_1 are off by up to 1/128 of a step; products of integers round activations to 8 bits.
    off = 0.4 if device == "integers" else 1e-3 if kind == "Q4_0" else 0.05
    for request, (prompt, name) in zip(asked, prompts, strict=True):
        assert request.finish == "length" and len(request.tokens) == 12
        reference = oracle(floats).logprobs([*prompt, *request.tokens[:-1]], adapter if name else None)[4:]
        chosen = reference[torch.arange(12), request.tokens]
        assert float((reference.amax(-1) - chosen).max()) < off, "as likely as the most likely one"
        assert float((chosen - torch.tensor(request.logprobs)).abs().max()) < off
    engine.close()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method = 'bitsandbytes'"),
        ({"quant_method": "compressed-tensors"}, "supported: gptq and awq"),
        ({"bits": 8}, "bits = 8 isn't supported; supported: 4"),
        ({"group_size": 48}, "group_size = 48"),
        ({"group_size": 0}, "group_size = 0"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
        ({"is_marlin_format": True}, "checkpoint_format = 'marlin'"),
        ({"quant_method": "awq", "version": "gemv"}, "version = 'gemv' isn't supported; supported: gemm"),
    ],
    ids=str,
)
def test_what_isnt_served_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelRejected) as refusal:
        grouped_format({"quantization_config": {**GPTQ, **changes}}, {})
    assert refusal.value.code == "model_feature" and says in str(refusal.value)


def test_where_the_format_is_told() -> None:
    assert grouped_format({}, {}) is None
    assert grouped_format({"quantization_config": None}, {}) is None
    beside = {"bits": 4, "group_size": 128, "desc_act": False}
    assert grouped_format({}, beside) == GroupedFormat("gptq", 128, 1)
    assert grouped_format({"quantization_config": AWQ}, beside) == GroupedFormat("awq", 32, 0)
    older = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}
    assert grouped_format({"quantization_config": older}, {}) == GroupedFormat("awq", 64, 0)


Tensors = dict[str, torch.Tensor]
DOWN = "model.layers.1.mlp.down_proj."


def without(*parts: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for part in parts:
            del tensors[DOWN + part]

    return change


def changed(part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({DOWN + part: change(tensors[DOWN + part]).contiguous()})


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (without("qzeros"), "model_tensor_missing", "layers.1.down_proj.qzeros"),
        (without("qweight", "qzeros", "scales", "g_idx"), "model_tensor_missing", "layers.1.down_proj"),
        (
            changed("scales", lambda part: part[:1]),
            "model_shape",
            "scales has the shape [1, 64], the config wants [3, 64]",
        ),
        (changed("scales", torch.Tensor.int), "model_tensor_type", "down_proj.scales of type I32"),
        (changed("qweight", torch.Tensor.long), "model_tensor_type", "down_proj.qweight of type I64"),
        (changed("g_idx", lambda part: part * 0 + 3), "model_tensor_value", "names group 3 of 3"),
        (changed("g_idx", lambda part: part - 1), "model_tensor_value", "names group -1 of 3"),
        (changed("scales", lambda part: part.float() * 1e-7), "model_tensor_value", "f16 can't hold"),
        (
            lambda all: all.update({f"{DOWN}weight": torch.zeros(64, 96)}),
            "model_tensor_unknown",
            "is there as a weight",
        ),
        (lambda all: all.update({f"{DOWN}bias": torch.ones(64)}), "model_tensor_unknown", "down_proj.bias"),
        (changed("scales", lambda part: part.float() * 1e9), "model_tensor_value", "f16 can't hold"),
        (lambda all: all.update({"model.new.qweight": torch.zeros(8).int()}), "model_tensor_unknown", "new.qweight"),
    ],
)
def test_folders_that_do_not_fit_are_refused(
    change: Callable[[Tensors], object], code: str, says: str, base: Path, tmp_path: Path
) -> None:
    packed, _ = grouped_folder(base, tmp_path, GPTQ, symmetric=True)
    tensors = load_file(packed / "model.safetensors")
    change(tensors)
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(ModelRejected) as refusal:
        open_model(packed).tensor("layers.1.down_proj")
    assert refusal.value.code == code and says in str(refusal.value)


def test_a_folder_that_says_nothing_of_its_four_bits_is_refused(base: Path, tmp_path: Path) -> None:
    packed, _ = grouped_folder(base, tmp_path, GPTQ, symmetric=True)
    config = json.loads((packed / "config.json").read_text())
    del config["quantization_config"]
    (packed / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelRejected) as refusal:
        open_model(packed)
    assert refusal.value.code == "model_tensor_missing"
    (packed / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32}))
    assert open_model(packed).tensor("layers.0.q_proj").kind == "Q4_0"


def test_matrices_that_were_not_converted(base: Path, tmp_path: Path) -> None:
    """`modules_to_not_convert`: some weights are as they were. Only what lies in one place can be rewritten."""
    packed, floats = grouped_folder(base, tmp_path, AWQ)
    tensors, kept = load_file(packed / "model.safetensors"), "model.layers.0.self_attn.o_proj"
    for part in ("qweight", "qzeros", "scales"):
        del tensors[f"{kept}.{part}"]
    tensors[f"{kept}.weight"] = load_file(floats / "model.safetensors")[f"{kept}.weight"]
    save_file(tensors, packed / "model.safetensors")
    weights = open_model(packed)
    assert weights.tensor("layers.0.o_proj").kind == "F32" and weights.tensor("layers.1.o_proj").kind == "Q4_1"
    assert weights.place("layers.0.o_proj").file.name == "model.safetensors"
    with pytest.raises(ModelRejected) as refusal:
        weights.place("layers.1.o_proj")
    assert refusal.value.code == "model_feature" and "layers.1.o_proj lies in parts" in str(refusal.value)


def test_biases_of_zeros_are_passed_over(base: Path, tmp_path: Path) -> None:
    """GPTQ's writers give every matrix one."""
    packed, _ = grouped_folder(base, tmp_path, GPTQ, symmetric=True)
    tensors = load_file(packed / "model.safetensors")
    tensors |= {key.replace("qweight", "bias"): torch.zeros(64).half() for key in tensors if key.endswith("qweight")}
    save_file(tensors, packed / "model.safetensors")
    assert open_model(packed).tensor("layers.0.o_proj").kind == "Q4_0"


def test_older_gptq_folders(base: Path, tmp_path: Path) -> None:
    """A file by another name, a config by another name; the digest knows of both."""
    packed, _ = grouped_folder(base, tmp_path, GPTQ)
    config = json.loads((packed / "config.json").read_text())
    beside = packed / "quantize_config.json"
    beside.write_text(json.dumps(config.pop("quantization_config")))
    (packed / "config.json").write_text(json.dumps(config))
    (packed / "model.safetensors").rename(packed / "gptq_model-4bit-32g.safetensors")
    first = open_model(packed)
    digest, values = first.digest, first.tensor("layers.0.q_proj").values()
    beside.write_text(json.dumps({**GPTQ, "checkpoint_format": "gptq_v2"}))
    second = open_model(packed)
    assert second.digest != digest
    assert (second.tensor("layers.0.q_proj").values() != values).any()


def test_a_minimum_beyond_f16_is_refused() -> None:
    grouped = Grouped.of(torch.Generator().manual_seed(1), 8, 32, 32, 1)
    large = grouped._replace(scales=torch.full((1, 8), 5000.0).half(), zeros=torch.full((1, 8), 15))
    with pytest.raises(ModelRejected) as refusal:
        tensor_of(large, "gptq", 1).raw()
    assert refusal.value.code == "model_tensor_value" and "-75000" in str(refusal.value)


def test_widths_that_blocks_dont_divide_are_refused(tmp_path: Path) -> None:
    narrow = make_tiny(tmp_path / "narrow", intermediate_size=80)
    with pytest.raises(ModelRejected) as refusal:
        packed, _ = grouped_folder(narrow, tmp_path, {**GPTQ, "group_size": -1})
        open_model(packed)
    assert refusal.value.code == "model_shape" and "inputs by 32" in str(refusal.value)
