"""Adapters in other formats than PEFT's: mapped exactly, or refused by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.load import load_adapter
from lorad.adapters.read import read_adapter
from lorad.errors import AdapterRejected
from lorad.models.config import ModelConfig
from lorad.models.hf_config import config_from_hf
from make_adapter import edit_config, edit_tensors, make_adapter
from other_formats import to_gguf, to_mlx
from tiny import flip, rewrite, tiny_config

Tensors = dict[str, torch.Tensor]
Q = "model.layers.0.self_attn.q_proj"


def config_of(family: str) -> ModelConfig:
    return config_from_hf(tiny_config(family).to_dict(), "tiny")


@pytest.fixture
def adapter(config: ModelConfig, tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "adapter", config, rank=4, alpha=12.5, modules=["q_proj", "k_proj", "up_proj"])


def load(path: Path, config: ModelConfig) -> CheckedAdapter:
    return load_adapter("mine", path, config, "digest")


def refused(path: Path, config: ModelConfig, code: str, *texts: str) -> None:
    with pytest.raises(AdapterRejected) as caught:
        load(path, config)
    assert caught.value.code == code, caught.value.message
    for text in texts:
        assert text in caught.value.message, caught.value.message


# llama.cpp's GGUF


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gguf_is_the_same_adapter(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """The same generation: the same weights and scales in force, rows of q and k in their own order."""
    config = config_of(family)
    folder = make_adapter(
        tmp_path / "a", config, rank=6, alpha=12.5, dtype=dtype, rank_pattern={"k_proj": 3, "down": 5}
    )
    edit_config(folder, rank_pattern={"k_proj": 3})
    kind = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]
    assert (
        load(to_gguf(folder, tmp_path / "a.gguf", config, kind), config).generation == load(folder, config).generation
    )


def test_gguf_in_a_folder(adapter: Path, config: ModelConfig, tmp_path: Path) -> None:
    wanted = load(adapter, config).generation
    to_gguf(adapter, adapter / "ggml-adapter.gguf", config)
    assert load(adapter, config).generation == wanted
    (tmp_path / "other").mkdir()
    alone = (adapter / "ggml-adapter.gguf").rename(tmp_path / "other" / "x.gguf")
    before = hashlib.sha256(alone.read_bytes()).hexdigest()
    assert load(alone.parent, config).generation == wanted
    assert hashlib.sha256(alone.read_bytes()).hexdigest() == before
    to_gguf(adapter, tmp_path / "other" / "y.gguf", config)
    refused(alone.parent, config, "adapter_missing", "2 GGUF files", "x.gguf first", "give the path of one")


def test_gguf_without_alpha_has_the_scale_one(config: ModelConfig, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "a", config, rank=4, modules=["q_proj", "up_proj"], rank_pattern={"up_proj": 8})
    for alpha in (None, 0.0):
        path = to_gguf(folder, tmp_path / f"{alpha}.gguf", config, keys={"adapter.lora.alpha": alpha})
        assert {lora.scale for lora in load(path, config).modules} == {1.0}
        assert {lora.rank for lora in load(path, config).modules} == {4, 8}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1"])
def test_quantised_gguf_is_dequantised_exactly(kind: str, config: ModelConfig, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "a", config, rank=32)
    checked = load(to_gguf(folder, tmp_path / "a.gguf", config, kind), config)
    assert checked.element == "f32"
    names = [module.name for module in config.modules()]
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    rows = {"q_proj": ("attn_q", config.heads), "k_proj": ("attn_k", config.kv_heads), "up_proj": ("ffn_up", 0)}
    for lora in checked.modules:
        if names[lora.module] not in rows:
            continue
        name, heads = rows[names[lora.module]]
        a, b = (stored[f"blk.{lora.layer}.{name}.weight.lora_{half}"] for half in "ab")
        assert a.tensor_type.name == b.tensor_type.name == kind
        values = gguf.dequantize(b.data, b.tensor_type)
        if heads:
            values = values.reshape(heads, -1, 2, 32).swapaxes(1, 2).reshape(values.shape)
        assert np.array_equal(lora.a.numpy(), gguf.dequantize(a.data, a.tensor_type))
        assert np.array_equal(lora.b.numpy(), values)


def test_gguf_with_what_converters_say_besides(adapter: Path, config: ModelConfig, tmp_path: Path) -> None:
    keys = {
        "general.base_model.0.name": "Tiny",
        "general.tags": ["lora"],
        "general.file_type": 1,
        "adapter.lora.task_name": "x",
        "llama.block_count": 3,
    }
    path = to_gguf(adapter, tmp_path / "a.gguf", config, keys=keys)
    assert load(path, config).generation == load(adapter, config).generation


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def added(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: torch.ones(shape)}


GGUF: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "a model": ({"keys": {"general.type": "model"}}, "adapter_file", ("type 'model', not an adapter",)),
    "no type": ({"keys": {"general.type": None}}, "adapter_file", ("not an adapter",)),
    "a control vector": ({"keys": {"adapter.type": "vector"}}, "adapter_feature", ("adapter.type is 'vector'",)),
    "no adapter.type": ({"keys": {"adapter.type": None}}, "adapter_feature", ("adapter.type is ''",)),
    "alpha a text": (
        {"keys": {"adapter.lora.alpha": "16"}},
        "adapter_config",
        ("adapter.lora.alpha", "wants a number"),
    ),
    "alpha NaN": ({"keys": {"adapter.lora.alpha": float("nan")}}, "adapter_config", ("alpha is nan",)),
    "aLoRA": (
        {"keys": {"adapter.alora.invocation_tokens": [1, 2]}},
        "adapter_feature",
        ("adapter.alora.invocation_tokens", "aLoRA"),
    ),
    "unknown key": ({"keys": {"adapter.magic": 1}}, "adapter_feature", ("adapter.magic", "isn't known")),
    "PEFT's name": (
        {"change": renamed("blk.0.attn_q.weight.lora_a", f"base_model.model.{Q}.lora_A.weight")},
        "adapter_tensor",
        (f"tensor base_model.model.{Q}.lora_A.weight corresponds to nothing",),
    ),
    "half a pair": (
        {"change": without("blk.1.attn_q.weight.lora_a")},
        "adapter_pair",
        ("blk.1.attn_q.weight.lora_b", "without its lora_A"),
    ),
    "layer that isn't there": (
        {"change": renamed("blk.2.", "blk.7.")},
        "adapter_shape",
        ("tensor blk.7.", "is for layer 7"),
    ),
    "unknown module": (
        {"change": renamed("attn_q.", "attn_qkv.")},
        "adapter_tensor",
        ("tensor blk.0.attn_qkv.weight.lora_a corresponds to nothing",),
    ),
    "a bias": ({"change": added("blk.0.attn_q.bias.lora_a", 4, 64)}, "adapter_tensor", ("blk.0.attn_q.bias.lora_a",)),
    "a norm": ({"change": added("blk.0.attn_norm.weight", 64)}, "adapter_feature", ("blk.0.attn_norm.weight", "whole")),
    "the embedding": (
        {
            "change": lambda old: added("token_embd.weight.lora_a", 320, 4)(
                added("token_embd.weight.lora_b", 64, 4)(old)
            )
        },
        "adapter_feature",
        ("tensor token_embd.weight.lora_", "embedding"),
    ),
    "another width": (
        {"change": lambda old: old | {"blk.0.attn_q.weight.lora_a": torch.ones(4, 32)}},
        "adapter_shape",
        ("tensor blk.0.attn_q.weight.lora_a has the shape [4, 32]",),
    ),
    "NaN": (
        {"change": lambda old: old | {"blk.0.attn_q.weight.lora_a": torch.full((4, 64), torch.nan)}},
        "adapter_not_finite",
        ("blk.0.attn_q.weight.lora_a",),
    ),
}


@pytest.mark.parametrize("name", GGUF)
def test_gguf_that_cannot_be_applied(name: str, adapter: Path, config: ModelConfig, tmp_path: Path) -> None:
    options, code, texts = GGUF[name]
    refused(to_gguf(adapter, tmp_path / "a.gguf", config, **options), config, code, *texts)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_output_is_read_as_peft_has_it(family: str, tmp_path: Path) -> None:
    config = config_of(family)
    folder = make_adapter(tmp_path / "a", config, rank=4, modules=["lm_head", "q_proj"])
    wanted = {
        key: tensor
        for key, tensor in load_file(folder / "adapter_model.safetensors").items()
        if ".lora_" in key and "base_layer" not in key
    }
    edit_tensors(folder, lambda old: wanted)
    files = read_adapter(to_gguf(folder, tmp_path / "a.gguf", config), config)
    found = files.load()
    assert found.keys() == wanted.keys() == files.entries.keys()
    for key, tensor in wanted.items():
        assert torch.equal(found[key], tensor), key
        assert files.entries[key].shape == tuple(tensor.shape)


def test_gguf_of_another_architecture(adapter: Path, config: ModelConfig, tmp_path: Path) -> None:
    path = to_gguf(adapter, tmp_path / "a.gguf", config)
    refused(path, config_of("qwen2"), "adapter_base", "'llama'", "the base's is 'qwen2'")
    load(path, config_of("mistral"))


@pytest.mark.parametrize("seed", range(60))
def test_damaged_gguf_is_refused_or_is_other_content(
    seed: int, adapter: Path, config: ModelConfig, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    path = to_gguf(adapter, tmp_path / "a.gguf", config, ["F32", "Q8_0"][seed % 2])
    before = load(path, config).generation
    if seed % 3:
        rewrite(path, lambda old: flip(old, rng, int(rng.integers(1, 4)), 2000))
    else:
        rewrite(path, lambda old: old[: int(rng.integers(0, len(old)))])
    try:
        assert load(path, config).generation != before or seed % 3
    except AdapterRejected as refusal:
        assert refusal.code.startswith("adapter_")


def test_gguf_with_a_header_beyond_the_limit(
    adapter: Path, config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lorad.adapters import gguf_files

    path = to_gguf(adapter, tmp_path / "a.gguf", config)
    monkeypatch.setattr(gguf_files, "HEADER_BYTES_MAX", 300)
    refused(path, config, "adapter_file", "a.gguf isn't a readable GGUF file", "it is cut")


def test_gguf_that_changes_between_check_and_read(
    adapter: Path, config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lorad.adapters import gguf_files

    path = to_gguf(adapter, tmp_path / "a.gguf", config)
    monkeypatch.setattr(
        gguf_files, "_config", lambda *_: (rewrite(path, lambda old: old[:-40]), {"peft_type": "LORA", "r": 4})[1]
    )
    refused(path, config, "adapter_file", "a.gguf changed while it was read")


# MLX


def test_mlx_is_the_same_adapter(config: ModelConfig, tmp_path: Path) -> None:
    for number, (rank, alpha, dtype) in enumerate(
        [(4, 12.5, torch.float32), (7, 3, torch.bfloat16), (8, 160, torch.half)]
    ):
        folder = make_adapter(tmp_path / f"{number}", config, rank=rank, alpha=alpha, dtype=dtype)
        path = to_mlx(folder, tmp_path / f"mlx{number}", config)
        assert load(path, config).generation == load(folder, config).generation


@pytest.mark.parametrize("scale", [20.0, 10, 0.1, 1 / 3, 1.7e-5, -2.0, 123456.789])
@pytest.mark.parametrize("rank", [1, 3, 7, 8])
def test_mlx_scale_multiplies_as_it_is(scale: float, rank: int, config: ModelConfig, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "a", config, rank=rank, modules=["q_proj"])
    parameters = {"rank": rank, "scale": scale, "dropout": 0.1}
    path = to_mlx(folder, tmp_path / "mlx", config, lora_parameters=parameters)
    assert {lora.scale for lora in load(path, config).modules} == {float(np.float32(scale))}


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": -1},
        {"num_layers": 0},
        {"num_layers": 16},
        {"num_layers": ..., "lora_layers": 3},
        {"num_layers": ..., "fine_tune_type": ...},
        {"some_option_of_the_training": [1]},
    ],
    ids=str,
)
def test_mlx_configs_that_are_accepted(
    changes: dict[str, Any], adapter: Path, config: ModelConfig, tmp_path: Path
) -> None:
    assert load(to_mlx(adapter, tmp_path / "mlx", config, **changes), config).generation == (
        load(adapter, config).generation
    )


def test_mlx_of_the_last_layers(config: ModelConfig, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "a", config, layers=[1, 2], modules=["q_proj"])
    assert len(load(to_mlx(folder, tmp_path / "mlx", config, num_layers=2), config).modules) == 2
    path = to_mlx(folder, tmp_path / "one", config, num_layers=1)
    refused(path, config, "adapter_target", "model.layers.1.self_attn.q_proj.lora_", "the last 1 of", "3")


def parameters(**changes: Any) -> dict[str, Any]:
    return {"lora_parameters": {"rank": 4, "scale": 2.0, "dropout": 0.0} | changes}


MLX: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "DoRA": ({"fine_tune_type": "dora"}, "adapter_feature", ("fine_tune_type = 'dora'", "DoRA isn't supported")),
    "full": ({"fine_tune_type": "full"}, "adapter_feature", ("fine_tune_type = 'full'", "whole model")),
    "unknown kind": ({"fine_tune_type": "magic"}, "adapter_feature", ("'magic'",)),
    "alpha": (parameters(alpha=16), "adapter_feature", ("lora_parameters.alpha", "remove alpha")),
    "unknown parameter": (parameters(rslora=True), "adapter_feature", ("lora_parameters.rslora", "isn't known")),
    "no parameters": ({"lora_parameters": ...}, "adapter_config", ("lora_parameters wants an object",)),
    "rank text": (parameters(rank="4"), "adapter_config", ("lora_parameters.rank wants an integer", "'4'")),
    "scale missing": (parameters(scale=None), "adapter_config", ("lora_parameters.scale wants",)),
    "scale infinite": (parameters(scale=float("inf")), "adapter_config", ("lora_parameters.scale wants",)),
    "other rank": (parameters(rank=8), "adapter_rank", ("q_proj.lora_a has rank 4", "says 8")),
    "keys a text": (parameters(keys="q_proj"), "adapter_config", ("lora_parameters.keys wants a list",)),
    "not in keys": (
        parameters(keys=["self_attn.q_proj", "mlp.up_proj"]),
        "adapter_target",
        ("self_attn.k_proj.lora_", "keys doesn't name"),
    ),
    "layers a text": ({"num_layers": "all"}, "adapter_config", ("num_layers wants an integer",)),
}


@pytest.mark.parametrize("name", MLX)
def test_mlx_configs_that_are_refused(name: str, adapter: Path, config: ModelConfig, tmp_path: Path) -> None:
    changes, code, texts = MLX[name]
    refused(to_mlx(adapter, tmp_path / "mlx", config, **changes), config, code, *texts)


MLX_TENSORS: dict[str, tuple[Callable[[Tensors], Tensors], str, tuple[str, ...]]] = {
    "DoRA's magnitude": (added(f"{Q}.m", 64), "adapter_feature", (f"tensor {Q}.m", "DoRA")),
    "embedding": (added("model.embed_tokens.lora_a", 320, 4), "adapter_feature", ("embed_tokens.lora_a is LoRA on",)),
    "half a pair": (without(f"{Q}.lora_b"), "adapter_pair", (f"{Q}.lora_a", "without its lora_B")),
    "wrapper": (renamed("model.layers", "language_model.model.layers"), "adapter_tensor", ("language_model.model",)),
    "quantised": (added(f"{Q}.lora_a_scales", 64, 1), "adapter_feature", (f"{Q}.lora_a_scales", "scale")),
    "transposed": (
        lambda old: old | {f"{Q}.lora_a": old[f"{Q}.lora_a"].T.contiguous()},
        "adapter_shape",
        (f"tensor {Q}.lora_a",),
    ),
    "fused weights": (added(f"{Q}.weight", 64, 64), "adapter_feature", (f"{Q}.weight", "whole weight")),
    "PEFT's name": (
        lambda old: old | {f"base_model.model.{Q}.lora_A.weight": old[f"{Q}.lora_a"].T.contiguous()},
        "adapter_tensor",
        (f"tensor base_model.model.{Q}.lora_A.weight corresponds to nothing",),
    ),
}


@pytest.mark.parametrize("name", MLX_TENSORS)
def test_mlx_tensors_that_are_refused(name: str, adapter: Path, config: ModelConfig, tmp_path: Path) -> None:
    change, code, texts = MLX_TENSORS[name]
    path = to_mlx(adapter, tmp_path / "mlx", config)
    save_file(change(load_file(path / "adapters.safetensors")), path / "adapters.safetensors")
    refused(path, config, code, *texts)


def test_mlx_without_tensors(adapter: Path, config: ModelConfig, tmp_path: Path) -> None:
    path = to_mlx(adapter, tmp_path / "mlx", config)
    (path / "adapters.safetensors").rename(path / "0000100_adapters.safetensors")
    refused(path, config, "adapter_missing", "no adapters.safetensors")


# anything else


@pytest.mark.parametrize(
    "key",
    [
        "lora_unet_down_blocks_0_attentions_0.lora_down.weight",
        "lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_up.weight",
        "lora_te1_text_model_encoder_layers_0_mlp_fc1.alpha",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_down.weight",
        "model.layers.0.self_attn.q_proj.alpha",
        "unet.down_blocks.0.attn1.to_q.lora.up.weight",
    ],
)
def test_kohyas_spelling_is_refused_by_name(key: str, adapter: Path, config: ModelConfig) -> None:
    edit_tensors(adapter, lambda old: {key: torch.ones(4, 64)})
    refused(adapter, config, "adapter_feature", f"tensor {key}", "Kohya", "rename lora_down and lora_up")


FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "adapter_model.bin": ("adapter_missing", ("adapter_model.bin is a pickle", "safetensors")),
    "lora.pt": ("adapter_missing", ("lora.pt is a pickle",)),
    "adapters.npz": ("adapter_missing", ("adapters.npz is of an old version of MLX",)),
    "lora.safetensors": ("adapter_missing", ("lora.safetensors alone doesn't say rank",)),
    "x.gguf": ("adapter_file", ("x.gguf isn't a readable GGUF file",)),
}


@pytest.mark.parametrize("name", FILES)
def test_files_alone(name: str, config: ModelConfig, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).write_bytes(b"1234")
    code, texts = FILES[name]
    refused(tmp_path / "folder", config, code, *texts)
    refused(tmp_path / "folder" / name, config, code, *texts)


def test_config_that_says_nothing(adapter: Path, config: ModelConfig) -> None:
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 4}))
    refused(adapter, config, "adapter_feature", "peft_type = None", "only LORA is supported")


WEIRD: list[Any] = [
    None, True, 0, -1, 1.5, float("nan"), float("inf"), 10**400, "", "x", "q_proj", "(", "[a", "\\", "\ud800", [],
    [None], [["a"]], [1], [10**30], ["q_proj", ""], {}, {"a": 1}, {"q_proj": None}, {"": 4}, {"q_proj": 10**400},
]  # fmt: skip


@pytest.mark.parametrize("form", ["PEFT", "MLX"])
def test_anything_in_any_field_is_taken_or_refused(
    form: str, adapter: Path, config: ModelConfig, tmp_path: Path
) -> None:
    path = adapter if form == "PEFT" else to_mlx(adapter, tmp_path / "mlx", config)
    file = path / "adapter_config.json"
    sound = json.loads(file.read_text())
    places: list[tuple[str, ...]] = [(field,) for field in (*sound, "peft_type", "fine_tune_type", "lora_layers")]
    if form == "MLX":
        places += [("lora_parameters", field) for field in ("rank", "scale", "dropout", "keys", "alpha")]
    for place in places:
        for value in WEIRD:
            changed = json.loads(json.dumps(sound))
            at = changed
            for field in place[:-1]:
                at = at[field]
            at[place[-1]] = value
            file.write_text(json.dumps(changed))
            try:
                words = load(path, config).warnings
            except AdapterRejected as refusal:
                words = (refusal.message,)
            "".join(words).encode()


def test_names_that_no_terminal_could_take(adapter: Path, config: ModelConfig) -> None:
    """Refused in one short readable line."""
    wild = "\x1b[31m\n" + "x" * 100_000
    edit_tensors(adapter, lambda old: old | {wild: torch.ones(1)})
    with pytest.raises(AdapterRejected) as caught:
        load(adapter, config)
    assert len(caught.value.message) < 600 and "corresponds to nothing in the base" in caught.value.message
    assert caught.value.message.isprintable() and r"\x1b[31m\n" in caught.value.message
    rewrite(adapter / "adapter_model.safetensors", lambda old: old.replace(rb"\u001b[31m\n", rb"\udc00[31m__"))
    with pytest.raises(AdapterRejected, match=r"\\udc00\[31m") as caught:
        load(adapter, config)
    caught.value.message.encode()
