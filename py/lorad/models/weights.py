"""`Weights`: a base model's tensors under canonical names, whatever file they lie in.

Names: `embed`, `layers.N.input_norm` (before attention), `layers.N.post_norm` (before the MLP), `layers.N.q_proj` …
`layers.N.down_proj`, `norm`, `head` (absent when the embedding is the head too); in some families `layers.N.q_norm` and
`k_norm` (of each head), `attention_out_norm` and `mlp_out_norm` (before the residual add), `q_proj.bias` and the like.
Rows are in the order of Hugging Face's modules.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import gguf
import numpy as np
from numpy.typing import NDArray

from lorad.errors import ModelRejected
from lorad.lazy import torch
from lorad.models.config import ModelConfig
from lorad.models.safetensors_file import FLOATS


@dataclass(frozen=True)
class RawTensor:
    """A tensor as it lies in its file. Nothing is read from the disk before it is looked at."""

    kind: str
    """GGUF's name of the number type: F32, F16, BF16, Q8_0, Q4_1, …"""
    raw: NDArray[np.uint8]
    """[rows, bytes of a row]; a vector has one row."""
    shape: tuple[int, ...]
    """[out, in], or [n] for a vector."""

    @property
    def rows(self) -> int:
        """Outputs; 1 for a vector."""
        return 1 if len(self.shape) == 1 else self.shape[0]

    @property
    def cols(self) -> int:
        """Inputs; the length of a vector."""
        return self.shape[-1]

    @property
    def is_dense(self) -> bool:
        """Whether torch has this number type."""
        return self.kind in FLOATS

    def dense(self) -> torch.Tensor:
        """The tensor in its own dense number type, without a copy where the rows lie together."""
        flat = torch.from_numpy(np.ascontiguousarray(self.raw).reshape(-1))
        return flat.view(getattr(torch, FLOATS[self.kind])).reshape(self.shape)

    def dequantize(self) -> torch.Tensor:
        """The exact values as f32, `shape`. A copy unless they are f32 already."""
        return self.dense().to(torch.float32) if self.is_dense else torch.from_numpy(self.values())

    def values(self) -> NDArray[np.float32]:
        """The same, a copy, without torch."""
        kind = gguf.GGMLQuantizationType[self.kind]
        try:
            values = gguf.dequantize(np.asarray(self.raw), kind)
        except NotImplementedError:
            raise ModelRejected(f"tensors of type {self.kind} can't be read", code="model_tensor_type") from None
        # gguf-py gives a view where nothing is to be done
        return np.array(values, dtype=np.float32).reshape(self.shape)


class Place(NamedTuple):
    """Where a tensor lies on the disk."""

    file: Path
    begin: int
    """Offset of its first byte."""
    order: NDArray[np.int64] | None
    """Row i there is row `order[i]` of the tensor; None: as they are."""


class Tensors(Protocol):
    """What a decoder is made of: every tensor of `config` is there, with the right shape."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    def tensor(self, name: str) -> RawTensor:
        """The tensor with this canonical name; KeyError for a name that the model doesn't have."""


class Weights(Tensors, Protocol):
    """A base model that has passed the checks."""

    @property
    def digest(self) -> str:
        """sha256 (hex) of the content that decides the numbers."""

    @property
    def path(self) -> Path:
        """The file or folder."""

    def place(self, name: str) -> Place:
        """Where the tensor with this canonical name lies."""


def check_names(config: ModelConfig, names: Collection[str]) -> None:
    """Refuses a file that lacks a tensor of the model or has one that would not be used."""
    wanted = config.shapes().keys()
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ModelRejected(f"the model lacks {_listed(missing)}", code="model_tensor_missing")
    unknown = [name for name in names if name not in wanted]
    if unknown:
        raise ModelRejected(
            f"the model has tensors that a {config.architecture} model of {config.layers} layers doesn't use: "
            f"{_listed(unknown)}",
            code="model_tensor_unknown",
        )


def check_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Refuses a tensor of another shape."""
    if found != wanted:
        raise ModelRejected(
            f"tensor {name} has the shape {list(found)}, the config wants {list(wanted)}", code="model_shape"
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
