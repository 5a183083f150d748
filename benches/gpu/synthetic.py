"""A base of a real model's shape whose weights are random, made where they're used: there is no file."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lorad.models.config import ModelConfig
from lorad.models.weights import Place, RawTensor

LLAMA_3_8B = ModelConfig(
    architecture="llama",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocab=128256,
    norm_eps=1e-5,
    rope_theta=5e5,
    rope_scaling=None,
    tie_embeddings=False,
    context_length=8192,
    bos_ids=(),
    eos_ids=(),
    name="synthetic 8B",
)
TINY = LLAMA_3_8B.replace(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=128)
"""For dry runs."""
DEVIATION = 0.02
Q4_0_COLUMNS, Q4_0_BYTES = 32, 18
"""Of a block: a scale of f16, then 32 numbers of four bits."""


@dataclass(frozen=True)
class RandomTensor(RawTensor):
    """Random values of bf16 on a device, the same each time; a vector is all ones."""

    seed: int
    device: torch.device

    def dense(self) -> torch.Tensor:
        """See `RawTensor`."""
        generator = torch.Generator(self.device).manual_seed(self.seed)
        values = torch.empty(self.shape, dtype=torch.bfloat16, device=self.device)
        return values.normal_(0, DEVIATION, generator=generator)

    def values(self) -> NDArray[np.float32]:
        """See `RawTensor`. Of vectors."""
        return np.ones(self.shape, dtype=np.float32)


class SyntheticWeights:
    """See `Weights`."""

    def __init__(self, config: ModelConfig, device: torch.device, *, four_bit: bool = False) -> None:
        """`four_bit`: layers' matrices are GGUF's Q4_0; embedding and head stay bf16."""
        self.config = config
        self._four_bit = four_bit
        self._blocks: dict[tuple[int, ...], NDArray[np.uint8]] = {}
        self.digest = f"synthetic {config}"
        self.path = Path("synthetic")
        self._device = device

    def tensor(self, name: str) -> RawTensor:
        """The tensor with this canonical name."""
        shape = self.config.shapes()[name]
        if self._four_bit and len(shape) == 2 and name.startswith("layers."):
            return RawTensor("Q4_0", self._random_blocks(shape), shape)
        nothing = np.empty((0, 0), dtype=np.uint8)
        return RandomTensor("BF16", nothing, shape, zlib.crc32(name.encode()), self._device)

    def _random_blocks(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """The same for all matrices of a shape: what they hold makes no difference to how long a step takes."""
        if shape not in self._blocks:
            rows, cols = shape
            blocks = np.random.default_rng(0).integers(0, 256, (rows, cols // Q4_0_COLUMNS, Q4_0_BYTES), dtype=np.uint8)
            blocks[..., :2] = np.array([DEVIATION / 4], dtype=np.float16).view(np.uint8)
            self._blocks[shape] = blocks.reshape(rows, -1)
        return self._blocks[shape]

    def place(self, name: str) -> Place:
        """Nothing lies on the disk."""
        raise KeyError(name)
