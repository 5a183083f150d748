"""A base model in a GGUF file, mapped into memory; quantised tensors stay as they are.

llama.cpp stores the rows of q and k of its `llama` architecture interleaved (pairs of rotary halves side by side). They
are put back into Hugging Face's order here, once, as whole rows of bytes: blocks lie within rows, so nothing is lost.
The other families' rows are in Hugging Face's order.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lorad.errors import ModelRejected
from lorad.models.config import BIASED, ModelConfig
from lorad.models.fields import NUMBER_MAX, NUMBER_MIN
from lorad.models.files import file_digest
from lorad.models.gguf_config import config_from_gguf
from lorad.models.gguf_header import TensorInfo, read_header
from lorad.models.rope import FactorRope
from lorad.models.weights import Place, RawTensor, check_names, check_shape

_PLAIN = {"token_embd.weight": "embed", "output_norm.weight": "norm", "output.weight": "head"}
IN_LAYER = {
    "attn_norm": "input_norm",
    "post_attention_norm": "attention_out_norm",
    "ffn_norm": "post_norm",
    "post_ffw_norm": "mlp_out_norm",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_output": "o_proj",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
"""llama.cpp's names of what a layer has, and ours."""
_ROPE_FACTORS = "rope_freqs.weight"
_ROPE_DERIVED = "attn_rot_embd"
"""Rotary frequencies that old converters stored; they follow from theta."""


class GgufWeights:
    """A checked GGUF file; see `Weights`."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        header = read_header(self._path)
        # Copy on write: torch wants writable memory and nothing writes, so no page is ever copied.
        self._data: NDArray[np.uint8] = np.memmap(self._path, dtype=np.uint8, mode="c")
        self.metadata = header.metadata
        self._tensors: dict[str, TensorInfo] = {}
        for name, info in header.tensors.items():
            if name != _ROPE_FACTORS and not name.endswith(f"{_ROPE_DERIVED}.weight"):
                self._tensors[canonical_name(name)] = info
        config = config_from_gguf(header.metadata, tied="head" not in self._tensors, name=self._path.stem)
        if _ROPE_FACTORS in header.tensors:
            config = _with_factors(config, self._raw(header.tensors[_ROPE_FACTORS]))
        self._config = config
        check_names(config, self._tensors)
        for name, shape in config.shapes().items():
            check_shape(name, self._tensors[name].shape, shape)

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self._config

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @cached_property
    def digest(self) -> str:
        """sha256 of the file."""
        return file_digest(self._path)

    def tensor(self, name: str) -> RawTensor:
        """The tensor with this canonical name, a view of the mapped file (q and k: a copy in the other row order)."""
        tensor, heads = self._raw(self._tensors[name]), self._interleaved(name)
        return _unpermuted(tensor, heads) if heads else tensor

    def place(self, name: str) -> Place:
        """Where the tensor with this canonical name lies in the file."""
        info, heads = self._tensors[name], self._interleaved(name)
        order = np.arange(info.shape[0]).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1) if heads else None
        return Place(self._path, info.begin, order)

    def _interleaved(self, name: str) -> int:
        """Heads of a tensor whose rows are in llama.cpp's order; 0 for all others."""
        if self._config.architecture != "llama" or not name.endswith((".q_proj", ".k_proj")):
            return 0
        return self._config.heads if name.endswith(".q_proj") else self._config.kv_heads

    def _raw(self, info: TensorInfo) -> RawTensor:
        raw = self._data[info.begin : info.begin + info.bytes].reshape(-1, info.row_bytes)
        return RawTensor(info.kind, raw, info.shape)


def canonical_name(name: str) -> str:
    """lorad's name of a tensor in the file; its own for one that no model here has."""
    if name in _PLAIN:
        return _PLAIN[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isascii() and parts[1].isdigit():
        known = IN_LAYER.get(parts[2])
        if known is not None and parts[1] == str(int(parts[1])):
            if parts[3] == "weight":
                return f"layers.{parts[1]}.{known}"
            if parts[3] == "bias" and known in BIASED:
                return f"layers.{parts[1]}.{known}.bias"
    # Kept under its own name, which `check_names` then refuses.
    return name


def _unpermuted(tensor: RawTensor, heads: int) -> RawTensor:
    """Rows [heads, half, 2] of llama.cpp back to [heads, 2, half]."""
    rows, row_bytes = tensor.raw.shape
    moved = tensor.raw.reshape(heads, rows // heads // 2, 2, row_bytes).swapaxes(1, 2)
    return RawTensor(tensor.kind, np.ascontiguousarray(moved).reshape(rows, row_bytes), tensor.shape)


def _with_factors(config: ModelConfig, tensor: RawTensor) -> ModelConfig:
    factors = tensor.dequantize().reshape(-1).tolist()
    if len(factors) != config.head_dim // 2 or not all(NUMBER_MIN <= factor <= NUMBER_MAX for factor in factors):
        raise ModelRejected(
            f"{_ROPE_FACTORS} wants {config.head_dim // 2} positive factors, has {len(factors)}", code="model_shape"
        )
    if config.rope_scaling is not None:
        raise ModelRejected(f"{_ROPE_FACTORS} beside a rope.scaling type isn't supported", code="model_feature")
    return config.replace(rope_scaling=FactorRope(tuple(factors)))
