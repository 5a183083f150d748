"""`Shard`: what one rank of several holds of a base model (Shoeybi et al. 2019, arXiv:1909.08053).

q, k, v, gate, up and the head are divided by outputs, o and down by inputs, so what a rank computes meets the others'
at two sums a layer: after o and after down. All else is on every rank. Attention is divided by whole groups, a key head
with the queries that read it.

All ranks have equal shapes, so a page, and an adapter's layout in pages, is the same on each. Where something doesn't
divide, the last ranks hold zeros: a head of zeros adds nothing through o, an MLP channel of zeros nothing through down.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import gguf
import numpy as np
from numpy.typing import NDArray

from lorad.models.config import HEAD, ModelConfig, Module
from lorad.models.weights import RawTensor, Tensors

BY_OUTPUTS = frozenset(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", HEAD, "head"))
"""Modules, and the weight of one that is called otherwise, of which a rank has some outputs."""
BY_INPUTS = frozenset(("o_proj", "down_proj"))

CHANNELS = 32
"""MLP channels and tokens of the vocabulary are divided by so many: blocks of quantised weights stay whole."""


@dataclass(frozen=True)
class ShardConfig(ModelConfig):
    """The shape of one rank's share. `vocab` is the whole model's, as ids of tokens are; the embedding is never the
    head too, of which a rank has some rows."""

    head_rows: int = 0

    def adaptable(self) -> tuple[Module, ...]:
        """As the model's, with the widths that this rank has."""
        *others, head = super().adaptable()
        return (*others, head._replace(out_features=self.head_rows))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Likewise."""
        return super().shapes() | {"head": (self.head_rows, self.hidden)}


@dataclass(frozen=True)
class Shard:
    """The share of one rank."""

    whole: ModelConfig
    rank: int
    world: int
    """How many ranks there are."""

    @cached_property
    def config(self) -> ShardConfig:
        """Its shape, the same for all ranks."""
        whole = self.whole
        kv_heads = -(-whole.kv_heads // self.world)
        values = {item.name: getattr(whole, item.name) for item in fields(whole)} | {
            "kv_heads": kv_heads,
            "heads": kv_heads * (whole.heads // whole.kv_heads),
            "intermediate": self._channels(whole.intermediate),
            "head_rows": self._channels(whole.vocab),
            "tie_embeddings": False,
        }
        return ShardConfig(**values)

    def _channels(self, count: int) -> int:
        return -(-count // (self.world * CHANNELS)) * CHANNELS

    def range(self, length: int, width: int) -> tuple[int, int]:
        """(begin, end) of what it has of `length`, at most `width`; empty where other ranks have had all."""
        begin = min(self.rank * width, length)
        return begin, min(begin + width, length)

    def weights(self, whole: Tensors) -> ShardWeights:
        """Its share of the model's weights."""
        return ShardWeights(whole, self)


def shards_of(config: ModelConfig, world: int) -> tuple[Shard, ...]:
    """One for each rank; none where one rank holds all."""
    return tuple(Shard(config, rank, world) for rank in range(world)) if world > 1 else ()


class ShardWeights:
    """A view: nothing is read before it's looked at."""

    def __init__(self, whole: Tensors, shard: Shard) -> None:
        self._whole = whole
        self._shard = shard
        self.config = shard.config

    def tensor(self, name: str) -> RawTensor:
        """This rank's part of a weight; quantised blocks stay as they are unless one lies on a border."""
        shape, module = self.config.shapes()[name], name.removesuffix(".bias").rpartition(".")[2]
        whole = self._whole.tensor("embed" if name == "head" and self._shard.whole.tie_embeddings else name)
        if module in BY_INPUTS or (module in BY_OUTPUTS and len(shape) == 1):
            return _columns(whole, self._shard.range(whole.cols, shape[-1]), shape)
        if module in BY_OUTPUTS:
            begin, end = self._shard.range(whole.rows, shape[0])
            return RawTensor(whole.kind, _filled(whole.raw[begin:end], shape[0], axis=0), shape)
        return whole


def _columns(whole: RawTensor, columns: tuple[int, int], shape: tuple[int, ...]) -> RawTensor:
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[whole.kind]]
    if any(count % block for count in (*columns, shape[-1])):
        whole = RawTensor("F32", whole.values().reshape(whole.rows, whole.cols).view(np.uint8), whole.shape)
        block, block_bytes = 1, 4
    begin, end = (count // block * block_bytes for count in columns)
    return RawTensor(whole.kind, _filled(whole.raw[:, begin:end], shape[-1] // block * block_bytes, axis=1), shape)


def _filled(raw: NDArray[np.uint8], count: int, *, axis: int) -> NDArray[np.uint8]:
    """`raw` with zeros behind it: of every number type they mean zero."""
    missing = [(0, 0), (0, 0)]
    missing[axis] = 0, count - raw.shape[axis]
    return np.pad(raw, missing) if missing[axis][1] else raw
