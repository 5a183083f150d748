"""Tiny models with random weights, as Hugging Face folders and as GGUF files, for tests that take milliseconds.

A Llama, unless another of the `FAMILIES` is asked for.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from blocks import quantize

TEXT_BYTES = 256
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = 320
"""The byte tokens, the specials, and some that no text gives."""
EOS = TEXT_BYTES + 2
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)

FAMILIES = {
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "gemma3": "Gemma3TextConfig",
}
"""transformers' config class of each."""

_ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}
"""llama.cpp's name of a model_type, where it's another one."""
_NAMES = {name: gguf.get_tensor_name_map(arch, 16) for arch, name in gguf.MODEL_ARCH_NAMES.items() if name in FAMILIES}


def tiny_config(family: str = "llama", **changes: Any) -> Any:
    """transformers' config of the tiny model: fewer key heads than heads, every width a multiple of 32."""
    import transformers

    values: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": TEXT_BYTES,
        "eos_token_id": EOS,
        "initializer_range": 0.25,
    }
    if family == "qwen2":
        del values["head_dim"]  # the class has no such field
    return getattr(transformers, FAMILIES[family])(**(values | changes))


WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "initializer_range": 0.125}
"""Changes that make every width a multiple of 256, as K-quants need."""


def make_tiny(
    folder: Path, family: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> Path:
    """Writes the model with its tokenizer as a Hugging Face folder."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    shard = changes.pop("max_shard_size", "5GB")
    model = AutoModelForCausalLM.from_config(tiny_config(family, **changes)).to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5).sub_(1.0 if family == "gemma3" else 0.0)
            elif name.endswith(".bias"):
                weight.normal_(0.0, 0.5)
    model.save_pretrained(folder, max_shard_size=shard)
    _write_tokenizer(folder)
    return folder


def make_tiny_gguf(
    folder: Path,
    target: Path,
    kind: str = "F16",
    *,
    embed: str | None = None,
    modules: dict[str, str] | None = None,
    keys: dict[str, Any] | None = None,
) -> Path:
    """Writes the model in `folder` as GGUF the way llama.cpp's converter does; matrices are of `kind`.

    `modules`: other kinds for some modules, as in {"v_proj": "Q6_K"}.
    `keys`: further keys, or None to leave one out that is written otherwise.
    """
    config = json.loads((folder / "config.json").read_text())
    arch = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(target, arch)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or config
    written: dict[str, Any] = {
        "general.name": "Tiny",
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
        f"{arch}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": token_texts(config["vocab_size"]),
        "tokenizer.ggml.token_type": [1] * TEXT_BYTES + [3] * 3 + [1] * (config["vocab_size"] - TEXT_BYTES - 3),
        "tokenizer.ggml.merges": ["Ġ t"],
        "tokenizer.ggml.bos_token_id": TEXT_BYTES,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    if config.get("head_dim"):
        written |= {f"{arch}.attention.key_length": head_dim, f"{arch}.attention.value_length": head_dim}
    if arch == "llama":
        written |= {"llama.rope.dimension_count": head_dim, "llama.vocab_size": config["vocab_size"]}
    if arch == "gemma3":
        written |= {
            "gemma3.attention.sliding_window": config["sliding_window"],
            "gemma3.rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
        }
    for key, value in (written | (keys or {})).items():
        if value is not None:
            _add(writer, key, value)
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        values = tensor.float().numpy()
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = permuted(values, values.shape[0] // head_dim)
        if arch == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        chosen = embed if embed and name.startswith(("model.embed", "lm_head")) else kind
        chosen = (modules or {}).get(name.split(".")[-2], chosen)
        number = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else chosen]
        writer.add_tensor(gguf_name(name, arch), quantize(values, number.name), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def make_tiny_dequantised(folder: Path, target: Path, kind: str) -> Path:
    """The model in `folder` with the values that `make_tiny_gguf` rounds its matrices to, as a folder of f32."""
    shutil.copytree(folder, target)
    number = gguf.GGMLQuantizationType[kind]
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            tensors[name] = torch.from_numpy(gguf.dequantize(quantize(tensor.float().numpy(), kind), number))
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def permuted(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """llama.cpp's row order of q and k: convert_hf_to_gguf.py, `LlamaModel.permute`."""
    rows = values.shape[0]
    return values.reshape(heads, 2, rows // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def gguf_name(name: str, arch: str = "llama") -> str:
    """A Hugging Face tensor's name in a GGUF file."""
    found = _NAMES[arch].get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None
    return str(found)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def token_texts(vocab: int) -> list[str]:
    """The vocabulary: bytes, specials, names that no text gives."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    text = list(bytes_to_unicode().values())
    return text + list(SPECIALS) + [f"<unused{i}>" for i in range(vocab - len(text) - len(SPECIALS))]


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(token_texts(VOCAB))}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    core.save(str(folder / "tokenizer.json"))
    config = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[2], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def rewrite(path: Path, change: Any) -> Path:
    """Writes a file's bytes anew after `change(bytearray)`."""
    content = bytearray(path.read_bytes())
    changed = change(content)
    path.write_bytes(content if changed is None else changed)
    return path


def flip(content: bytearray, rng: np.random.Generator, count: int, end: int) -> None:
    """Changes `count` random bytes before `end`."""
    for position in rng.integers(0, end, count).tolist():
        content[position] ^= int(rng.integers(1, 256))
