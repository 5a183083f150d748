"""Reading base models: equal to transformers bit for bit, and refused by name when anything is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lorad.errors import ModelRejected
from lorad.models import files
from lorad.models.config import MODULES
from lorad.models.gguf_config import config_from_gguf
from lorad.models.gguf_file import GgufWeights
from lorad.models.hf_config import config_from_hf
from lorad.models.open import open_model
from lorad.models.rope import FactorRope, LinearRope, Llama3Rope, rope_frequencies
from lorad.models.safetensors_model import SafetensorsWeights
from lorad.models.weights import Weights
from oracle import load_reference, oracle
from tiny import VOCAB, WIDE, flip, make_tiny, make_tiny_gguf, permuted, rewrite, tiny_config

NAMES = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
IN_LAYER = {"input_norm": "input_layernorm", "post_norm": "post_attention_layernorm"}


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("wide") / "model", **WIDE)


@pytest.fixture
def tiny_gguf(tiny: Path, tmp_path: Path) -> Path:
    return make_tiny_gguf(tiny, tmp_path / "tiny.gguf")


def hf_name(name: str) -> str:
    """transformers' name of a canonical one."""
    if name in NAMES:
        return NAMES[name] + ".weight"
    _, layer, part = name.split(".")
    parent = "self_attn." if part in MODULES[:4] else "mlp." if part in MODULES else ""
    return f"model.layers.{layer}.{parent}{IN_LAYER.get(part, part)}.weight"


def assert_same(weights: Weights, state: dict[str, torch.Tensor]) -> None:
    """Every tensor equal bit for bit, and none left over."""
    names = {hf_name(name): name for name in weights.config.shapes()}
    assert set(names) | {"lm_head.weight"} == set(state) | {"lm_head.weight"}
    for theirs, ours in names.items():
        found, wanted = weights.tensor(ours).dequantize(), state[theirs].float()
        assert found.dtype == torch.float32
        assert found.shape == wanted.shape, ours
        assert torch.equal(found.view(torch.int32), wanted.view(torch.int32)), ours


def test_real_gguf_equals_transformers(smollm2_gguf: Path) -> None:
    weights = open_model(smollm2_gguf)
    config = weights.config
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (30, 576, 9, 3, 64)
    assert (config.vocab, config.intermediate, config.context_length) == (49152, 1536, 8192)
    assert (config.bos_ids, config.eos_ids, config.tie_embeddings) == ((1,), (2,), True)
    assert weights.tensor("layers.0.q_proj").kind == "Q4_1"
    assert weights.tensor("embed").kind == "Q8_0"
    reference = oracle(smollm2_gguf)
    assert_same(weights, reference.state())
    assert config.norm_eps == reference.config.rms_norm_eps
    assert config.rope_theta == reference.config.rope_parameters["rope_theta"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_folder_equals_transformers(tmp_path: Path, dtype: torch.dtype, tied: bool) -> None:
    folder = make_tiny(tmp_path / "model", dtype=dtype, tie_word_embeddings=tied)
    weights = open_model(folder)
    assert ("head" in weights.config.shapes()) is not tied
    assert_same(weights, load_reference(folder).state_dict())
    tensor = weights.tensor("embed")
    assert tensor.is_dense
    assert tensor.dense().dtype == dtype


def test_sharded_folder(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "model", max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert_same(open_model(folder), load_reference(folder).state_dict())


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
def test_gguf_equals_transformers(tiny: Path, wide: Path, tmp_path: Path, kind: str) -> None:
    path = make_tiny_gguf(wide if kind.endswith("_K") else tiny, tmp_path / "tiny.gguf", kind)
    weights = open_model(path)
    assert weights.tensor("layers.1.k_proj").kind == kind
    assert_same(weights, load_reference(path).state_dict())


def test_gguf_equals_its_folder(tiny: Path, tmp_path: Path) -> None:
    ours, theirs = open_model(make_tiny_gguf(tiny, tmp_path / "tiny.gguf", "F32")), open_model(tiny)
    assert ours.config.replace(name="", norm_eps=1.0) == theirs.config.replace(name="", norm_eps=1.0)
    assert math.isclose(ours.config.norm_eps, theirs.config.norm_eps, rel_tol=1e-6)
    for name in theirs.config.shapes():
        assert torch.equal(ours.tensor(name).dequantize(), theirs.tensor(name).dequantize()), name


def test_untied_gguf(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "model", tie_word_embeddings=False)
    path = make_tiny_gguf(folder, tmp_path / "tiny.gguf", "Q4_1", embed="Q8_0")
    weights = open_model(path)
    assert not weights.config.tie_embeddings
    assert weights.tensor("head").kind == "Q8_0"
    assert_same(weights, load_reference(path).state_dict())


@pytest.mark.parametrize(("name", "heads"), [("q_proj", 4), ("k_proj", 2)])
def test_reordered_rows_keep_their_bytes_2_9(tiny: Path, tmp_path: Path, name: str, heads: int) -> None:
    weights = GgufWeights(make_tiny_gguf(tiny, tmp_path / "tiny.gguf", "Q4_1"))
    info = weights._tensors[f"layers.0.{name}"]
    stored = np.asarray(weights._raw(info).raw)
    assert np.array_equal(permuted(weights.tensor(f"layers.0.{name}").raw, heads), stored)
    assert not np.array_equal(weights.tensor(f"layers.0.{name}").raw, stored)


def test_modules_of_a_layer(tiny: Path) -> None:
    found = {module.name: (module.in_features, module.out_features) for module in open_model(tiny).config.modules()}
    assert tuple(found) == MODULES
    assert found == {
        "q_proj": (64, 64),
        "k_proj": (64, 32),
        "v_proj": (64, 32),
        "o_proj": (64, 64),
        "gate_proj": (64, 96),
        "up_proj": (64, 96),
        "down_proj": (96, 64),
    }


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


@pytest.mark.parametrize("scaling", [LLAMA3, {"rope_type": "linear", "factor": 4.0}], ids=["llama3", "linear"])
@pytest.mark.parametrize("spelling", ["old", "new"])
def test_rotary_scaling_equals_transformers(scaling: dict[str, Any], spelling: str) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs = tiny_config(rope_parameters=scaling | {"rope_theta": 50000.0}, max_position_embeddings=2048)
    raw = theirs.to_dict()
    if spelling == "old":
        raw = {key: value for key, value in raw.items() if key != "rope_parameters"}
        raw |= {"rope_theta": 50000.0, "rope_scaling": scaling}
    config = config_from_hf(raw, "tiny")
    assert config.rope_theta == 50000.0
    assert isinstance(config.rope_scaling, Llama3Rope | LinearRope)
    found = rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    wanted, _ = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, None)
    assert torch.equal(torch.from_numpy(found), wanted)


def add_tensor(path: Path, name: str, values: Any, target: Path) -> Path:
    """A copy of a GGUF file with one more tensor."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind, inner = field.types[0], field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        if tensor.name != name:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    if values is not None:
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_llama3_factors_of_gguf(tiny_gguf: Path, tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    path = add_tensor(tiny_gguf, "rope_freqs.weight", factors, tmp_path / "scaled.gguf")
    assert open_model(path).config.rope_scaling == FactorRope(tuple(factors.tolist()))
    path = add_tensor(tiny_gguf, "rope_freqs.weight", factors[:7].copy(), tmp_path / "short.gguf")
    refused(path, "model_shape", "rope_freqs")


def refused(path: Path, code: str, *texts: str) -> None:
    with pytest.raises(ModelRejected) as caught:
        open_model(path)
    assert caught.value.code == code, caught.value
    for text in texts:
        assert text in caught.value.message


@pytest.mark.parametrize(
    ("keys", "code", "text"),
    [
        ({"llama.block_count": None}, "model_config", "llama.block_count is missing"),
        ({"llama.block_count": 2}, "model_tensor_unknown", "layers.2"),
        ({"llama.block_count": 4}, "model_tensor_missing", "layers.3.input_norm"),
        ({"llama.block_count": 0}, "model_config", "layers is 0"),
        ({"llama.block_count": "3"}, "model_config", "wants an integer"),
        ({"llama.embedding_length": 128}, "model_shape", "[320, 128]"),
        ({"llama.vocab_size": 321}, "model_shape", "embed"),
        ({"llama.attention.head_count_kv": 3}, "model_config", "can't share 3"),
        ({"llama.attention.head_count": 0}, "model_config", "heads is 0"),
        ({"llama.attention.key_length": 8}, "model_feature", "value_length"),
        ({"llama.rope.dimension_count": 8}, "model_feature", "dimension_count"),
        ({"llama.rope.scaling.type": "yarn"}, "model_feature", "yarn"),
        ({"llama.rope.freq_base": -1.0}, "model_config", "rope_theta"),
        ({"llama.rope.freq_base": float("nan")}, "model_config", "rope.freq_base"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "model_config", "epsilon"),
        ({"llama.expert_count": 8}, "model_feature", "expert_count"),
        ({"llama.attention.sliding_window": 256}, "model_feature", "sliding_window"),
        ({"general.alignment": 7}, "gguf_form", "alignment"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_gguf_keys_refused(tiny: Path, tmp_path: Path, keys: dict[str, Any], code: str, text: str) -> None:
    refused(make_tiny_gguf(tiny, tmp_path / "bad.gguf", keys=keys), code, text)


def test_gguf_of_another_architecture() -> None:
    with pytest.raises(ModelRejected, match="'gpt2' isn't supported; supported: llama, qwen2"):
        config_from_gguf({"general.architecture": "gpt2"}, tied=True, name="")


def test_gguf_tensors_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    bias = np.zeros(64, dtype=np.float32)
    path = add_tensor(tiny_gguf, "blk.0.attn_q.bias", bias, tmp_path / "a.gguf")
    refused(path, "model_tensor_unknown", "layers.0.q_proj.bias")
    path = add_tensor(tiny_gguf, "blk.1.attn_norm.weight", None, tmp_path / "b.gguf")
    refused(path, "model_tensor_missing", "layers.1.input_norm")
    path = add_tensor(tiny_gguf, "output_norm.weight", bias[:32].copy(), tmp_path / "c.gguf")
    refused(path, "model_shape", "norm", "[32]", "[64]")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: b"", "empty"),
        (lambda c: c[:3], "GGUF"),
        (lambda c: b"GGML" + c[4:], "begin with GGUF"),
        (lambda c: c[:4] + (9).to_bytes(4, "little") + c[8:], "version 9"),
        (lambda c: c[:100], "cut"),
        (lambda c: c[:2000], "cut"),
        (lambda c: c[:-1], "cut: tensor"),
        (lambda c: c[: len(c) // 2], "cut: tensor"),
        (lambda c: c[:8] + (2**62).to_bytes(8, "little") + c[16:], "isn't a readable GGUF"),
    ],
    ids=["empty", "3 bytes", "magic", "version", "in keys", "in tokens", "last byte", "half", "tensor count"],
)
def test_cut_and_foreign_gguf(tiny_gguf: Path, change: Callable[[bytearray], bytes], text: str) -> None:
    refused(rewrite(tiny_gguf, change), "gguf_form", text)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"model_type": "qwen2_moe"}, "model_architecture", "'qwen2_moe'"),
        ({"attention_bias": True}, "model_feature", "attention_bias"),
        ({"mlp_bias": True}, "model_feature", "mlp_bias"),
        ({"hidden_act": "gelu"}, "model_feature", "hidden_act"),
        ({"quantization_config": {"quant_method": "fp8"}}, "model_feature", "quantization_config.quant_method"),
        ({"quantization_config": {"quant_method": "gptq"}}, "model_config", "bits is missing"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "model_feature", "yarn"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "model_config", "factor"),
        ({"num_key_value_heads": 3}, "model_config", "share"),
        ({"num_hidden_layers": None}, "model_config", "num_hidden_layers is missing"),
        ({"num_hidden_layers": 2}, "model_tensor_unknown", "layers.2"),
        ({"num_hidden_layers": 4}, "model_tensor_missing", "layers.3"),
        ({"hidden_size": 32}, "model_shape", "embed"),
        ({"head_dim": 15}, "model_config", "odd"),
        ({"tie_word_embeddings": False}, "model_tensor_missing", "head"),
        ({"rms_norm_eps": "small"}, "model_config", "rms_norm_eps"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_folder_configs_refused(tmp_path: Path, tiny: Path, changes: dict[str, Any], code: str, text: str) -> None:
    folder = copy_of(tiny, tmp_path)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    refused(folder, code, text)


def copy_of(tiny: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in tiny.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: b"", "cut: 0 bytes"),
        (lambda c: c[:6], "cut: 6 bytes"),
        (lambda c: c[:500], "cut: its header"),
        (lambda c: c[:-1], "cut: its tensors"),
        (lambda c: c + b"x", "bytes are left over"),
        (lambda c: (2**60).to_bytes(8, "little") + c[8:], "at most"),
        (lambda c: c[:8] + b"[" + c[9:], "can't be read"),
        (lambda c: c.replace(b'"F32"', b'"F99"', 1), "can't be understood"),
        (lambda c: c.replace(b'"shape":[64]', b'"shape":[63]', 1), "needs 252 bytes"),
    ],
    ids=["empty", "6 bytes", "in header", "last byte", "one more", "header size", "JSON", "type", "shape"],
)
def test_cut_and_damaged_safetensors(
    tmp_path: Path, tiny: Path, change: Callable[[bytearray], bytes], text: str
) -> None:
    folder = copy_of(tiny, tmp_path)
    rewrite(folder / "model.safetensors", change)
    refused(folder, "safetensors_form", text)


@pytest.mark.parametrize("seed", range(100))
def test_damaged_safetensors_headers_are_refused_or_read(tmp_path: Path, tiny: Path, seed: int) -> None:
    folder = copy_of(tiny, tmp_path)
    rng = np.random.default_rng(seed)
    rewrite(folder / "model.safetensors", lambda content: flip(content, rng, int(rng.integers(1, 4)), 2000))
    try:
        open_model(folder).tensor("embed").dequantize()
    except ModelRejected as refusal:
        assert refusal.message


def test_folder_tensors_refused(tmp_path: Path, tiny: Path) -> None:
    folder = copy_of(tiny, tmp_path)
    tensors = load_file(tiny / "model.safetensors")

    def write(**changes: torch.Tensor) -> None:
        save_file(tensors | {k.replace("__", "."): v for k, v in changes.items()}, folder / "model.safetensors")

    write(model__layers__0__self_attn__q_proj__bias=torch.zeros(64))
    refused(folder, "model_tensor_unknown", "q_proj.bias")
    write(model__norm__weight=torch.zeros(64, dtype=torch.float64))
    refused(folder, "model_tensor_type", "F64")
    write(lm_head__weight=torch.zeros(VOCAB, 64))
    refused(folder, "model_tensor_unknown", "differs")
    write(lm_head__weight=tensors["model.embed_tokens.weight"].clone())
    assert "head" not in open_model(folder).config.shapes()


def test_folder_files_refused(tmp_path: Path, tiny: Path) -> None:
    folder = copy_of(tiny, tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "model_file", "pickle")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    refused(folder, "model_file", "'../x.safetensors'")
    (folder / "config.json").write_text("{")
    refused(folder, "model_config", "isn't JSON")
    (folder / "config.json").unlink()
    refused(folder, "model_file", "config.json")
    refused(tmp_path / "nowhere", "model_missing", "no model")


def test_digest_is_the_content_and_is_computed_once(
    tiny_gguf: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    real = files.hash_file

    def counted(path: Path, *rest: Any) -> str:
        computed.append(path.name)
        return real(path, *rest)

    monkeypatch.setattr(files, "hash_file", counted)
    first = GgufWeights(tiny_gguf).digest
    assert GgufWeights(tiny_gguf).digest == first == real(tiny_gguf)
    assert computed == ["tiny.gguf"]
    rewrite(tiny_gguf, lambda content: content[:-1] + bytes([content[-1] ^ 1]))
    assert GgufWeights(tiny_gguf).digest != first
    assert len(computed) == 2

    folder = copy_of(tiny, tmp_path)
    assert SafetensorsWeights(folder).digest == SafetensorsWeights(tiny).digest
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-4}))
    assert SafetensorsWeights(folder).digest != SafetensorsWeights(tiny).digest


def test_digest_without_a_data_folder(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path / "file" / "below"))
    assert GgufWeights(tiny_gguf).digest == files.hash_file(tiny_gguf)
