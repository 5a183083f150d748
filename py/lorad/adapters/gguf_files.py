"""Reading an adapter as llama.cpp's convert_lora_to_gguf.py writes it.

A tensor of the base, `blk.N.attn_q.weight`, has two here: `….lora_a` [rank, in] and `….lora_b` [out, rank]. The scale
is alpha / rank, or 1 where alpha is 0 (`llama_adapter_lora_weight::get_scale`). The converter puts B through what it
does to the base's weights: in files of the `llama` architecture the rows of q and k are interleaved, and are put back
here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from lorad.adapters.features import BY_NAME
from lorad.adapters.files import UNKNOWN, AdapterFiles
from lorad.adapters.keys import module_path
from lorad.adapters.reject import reject
from lorad.errors import ModelRejected
from lorad.lazy import torch
from lorad.models.config import HEAD, MODULES, ModelConfig
from lorad.models.gguf_file import IN_LAYER
from lorad.models.gguf_header import GgufHeader, TensorInfo, parse_header
from lorad.models.gguf_keys import Keys
from lorad.models.safetensors_file import FLOATS, Entry
from lorad.models.weights import RawTensor

HEADER_BYTES_MAX = 16 << 20
"""An adapter's is kilobytes, as it has no vocabulary."""
_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.([a-z_]+)\.weight\.lora_([ab])")
_MODULES = {name: module for name, module in IN_LAYER.items() if module in MODULES}
_OUTSIDE = {
    "output.weight.lora_a": "base_model.model.lm_head.lora_A.weight",
    "output.weight.lora_b": "base_model.model.lm_head.lora_B.weight",
}
_EMBEDDING = "token_embd."
_ARCHITECTURES = {"mistral": "llama"}
"""llama.cpp's name of a base's architecture, where it's another one."""
_INTERLEAVED = "llama"
"""The architecture whose q and k are."""
_TENSORS = {module: name for name, module in _MODULES.items()} | {HEAD: "output"}
_SAID = re.compile(r"general\..*|adapter\.(type|lora\.alpha|lora\.task_name|lora\.prompt_prefix)|GGUF\..*|split\..*")
"""Keys that are read, or that say nothing about the numbers. Those of the base's shape are the architecture's."""


def architecture_of(base: ModelConfig) -> str:
    """llama.cpp's name of a base's architecture."""
    return _ARCHITECTURES.get(base.architecture, base.architecture)


def tensor_name(layer: int, module: str) -> str:
    """The base's tensor that the halves of a pair are named after; of a projection, or of the head."""
    return f"{_TENSORS[module]}.weight" if module == HEAD else f"blk.{layer}.{_TENSORS[module]}.weight"


def interleaved_heads(module: str, base: ModelConfig) -> int:
    """Heads of a module whose rows are interleaved in the file; 0 for all others."""
    if architecture_of(base) != _INTERLEAVED:
        return 0
    return {"q_proj": base.heads, "k_proj": base.kv_heads}.get(module, 0)


def read_gguf(path: Path, base: ModelConfig | None) -> AdapterFiles:
    """Reads the file's keys and directory. Without a base its architecture isn't checked, and rows stay as they are."""
    header = _header(path)
    try:
        keys = Keys(header.metadata)
        _check_keys(path, keys, header.metadata, base)
        alpha = keys.number("adapter.lora.alpha", 0.0)
    except ModelRejected as refusal:
        raise reject("adapter_config", refusal.message) from None
    names = {_key(name): name for name in header.tensors}
    entries = {key: _entry(header.tensors[name]) for key, name in names.items()}
    return AdapterFiles(
        "GGUF",
        path,
        _config(alpha, entries),
        entries,
        partial(_load, path, header, names, base),
        types=tuple(sorted({info.kind for info in header.tensors.values()})),
        names=names,
    )


def _header(path: Path) -> GgufHeader:
    """Read, not mapped: whoever writes a mapped file anew, shorter, ends this process."""
    try:
        with open(path, "rb") as file:
            return parse_header(file.read(HEADER_BYTES_MAX), os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise reject("adapter_file", f"{path.name} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise reject("adapter_file", f"{path.name} isn't a readable GGUF file: {error}") from None


def _check_keys(path: Path, keys: Keys, metadata: Mapping[str, Any], base: ModelConfig | None) -> None:
    kind = keys.text("general.type", "model")
    if kind != "adapter":
        raise reject("adapter_file", f"{path.name} is a GGUF file of type {kind!r}, not an adapter")
    method = keys.text("adapter.type", "")
    if method != "lora":
        feature = BY_NAME["methods other than LoRA"]
        raise reject(feature.code, f"GGUF: adapter.type is {method!r}; only 'lora' is supported")
    architecture = keys.text("general.architecture", "")
    if keys.has("adapter.alora.invocation_tokens"):
        feature = BY_NAME["activated LoRA (aLoRA)"]
        raise reject(feature.code, f"GGUF: adapter.alora.invocation_tokens: {feature.refusal}")
    for name in metadata:
        if not (_SAID.fullmatch(name) or name.startswith(f"{architecture}.")):
            feature = BY_NAME["fields that aren't known"]
            raise reject(feature.code, f"GGUF: {name} {feature.reason}")
    if base is not None:
        wanted = architecture_of(base)
        if architecture != wanted:
            feature = BY_NAME["GGUF for another architecture"]
            raise reject(
                feature.code,
                f"GGUF: general.architecture is {architecture!r}, the base's is {wanted!r}: {feature.refusal}",
            )


def _key(name: str) -> str:
    """PEFT's key; one that `check` refuses if there is none, even if the name is like one of PEFT's."""
    if name.startswith(_EMBEDDING):
        feature = BY_NAME["GGUF: LoRA on the embedding"]
        raise reject(feature.code, f"tensor {name} {feature.refusal}")
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match = _NAME.fullmatch(name)
    if match is None or match[2] not in _MODULES:
        return UNKNOWN + name
    return f"base_model.model.{module_path(int(match[1]), _MODULES[match[2]])}.lora_{match[3].upper()}.weight"


def _entry(info: TensorInfo) -> Entry:
    quantised = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[info.kind]][0] > 1
    return Entry("F32" if quantised else info.kind, info.shape, info.begin, info.begin + info.bytes)


def _config(alpha: float, entries: Mapping[str, Entry]) -> dict[str, Any]:
    """What PEFT's adapter_config.json would say."""
    ranks = {
        key.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): entry.shape[0]
        for key, entry in entries.items()
        if key.endswith(".lora_A.weight")
    }
    found = list(ranks.values())
    usual = max(set(found), key=found.count) if found else 1
    others = {path: rank for path, rank in ranks.items() if rank != usual}
    config: dict[str, Any] = {"peft_type": "LORA", "r": usual, "lora_alpha": alpha if alpha else usual}
    if others:
        patterns = {"^" + re.escape(path): rank for path, rank in others.items()}
        config |= {"rank_pattern": patterns} if alpha else {"rank_pattern": patterns, "alpha_pattern": patterns}
    return config


def _load(
    path: Path, header: GgufHeader, names: Mapping[str, str], base: ModelConfig | None
) -> dict[str, torch.Tensor]:
    try:
        data = np.fromfile(path, dtype=np.uint8)
        # As text: a NaN doesn't equal itself.
        unchanged = repr(parse_header(data[:HEADER_BYTES_MAX].tobytes(), len(data))) == repr(header)
    except (OSError, ValueError):
        unchanged, data = False, np.empty(0, np.uint8)
    if not unchanged:
        raise reject("adapter_file", f"{path.name} changed while it was read; try again when it's complete")
    return {key: _tensor(data, key, name, header.tensors[name], base) for key, name in names.items()}


def _tensor(data: Any, key: str, name: str, info: TensorInfo, base: ModelConfig | None) -> torch.Tensor:
    raw = data[info.begin : info.begin + info.bytes]
    if info.kind in FLOATS and raw.ctypes.data % (info.row_bytes // info.shape[-1]):
        raw = raw.copy()
    stored = RawTensor(info.kind, raw.reshape(-1, info.row_bytes), info.shape)
    try:
        tensor = stored.dense() if stored.is_dense else stored.dequantize()
    except ModelRejected as refusal:
        raise reject("adapter_dtype", f"tensor {name}: {refusal.message}") from None
    heads = 0 if base is None or not key.endswith(".lora_B.weight") else interleaved_heads(key.split(".")[-3], base)
    if heads:
        # Rows [heads, half, 2] back to [heads, 2, half].
        return tensor.reshape(heads, -1, 2, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
    return tensor
