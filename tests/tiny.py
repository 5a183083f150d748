"""A tiny Llama with random weights, as a Hugging Face folder and as GGUF files, for tests that take milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

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


_NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 16)


def tiny_config(**changes: Any) -> Any:
    """transformers' config of the tiny model: fewer key heads than heads, every width a multiple of 32."""
    from transformers import LlamaConfig

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
    return LlamaConfig(**(values | changes))


WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "initializer_range": 0.125}
"""Changes that make every width a multiple of 256, as K-quants need."""


def make_tiny(folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Writes the model with its tokenizer as a Hugging Face folder."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    shard = changes.pop("max_shard_size", "5GB")
    model = LlamaForCausalLM(tiny_config(**changes)).to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
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
    writer = gguf.GGUFWriter(target, "llama")
    head_dim = config["head_dim"]
    written: dict[str, Any] = {
        "general.name": "Tiny",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": float((config.get("rope_parameters") or config)["rope_theta"]),
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": _tokens(config["vocab_size"]),
        "tokenizer.ggml.token_type": [1] * TEXT_BYTES + [3] * 3 + [1] * (config["vocab_size"] - TEXT_BYTES - 3),
        "tokenizer.ggml.merges": ["Ġ t"],
        "tokenizer.ggml.bos_token_id": TEXT_BYTES,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    for key, value in (written | (keys or {})).items():
        if value is not None:
            _add(writer, key, value)
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        values = tensor.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = permuted(values, values.shape[0] // head_dim)
        chosen = embed if embed and name.startswith(("model.embed", "lm_head")) else kind
        chosen = (modules or {}).get(name.split(".")[-2], chosen)
        number = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else chosen]
        writer.add_tensor(gguf_name(name), quantize(values, number.name), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def permuted(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """llama.cpp's row order of q and k: convert_hf_to_gguf.py, `LlamaModel.permute`."""
    rows = values.shape[0]
    return values.reshape(heads, 2, rows // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def gguf_name(name: str) -> str:
    """A Hugging Face tensor's name in a GGUF file."""
    found = _NAMES.get_name(name, try_suffixes=(".weight", ".bias"))
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


def _tokens(vocab: int) -> list[str]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    text = list(bytes_to_unicode().values())
    return text + list(SPECIALS) + [f"<unused{i}>" for i in range(vocab - len(text) - len(SPECIALS))]


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(_tokens(VOCAB))}, merges=[]))
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
