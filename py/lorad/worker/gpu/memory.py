"""`Memory`: what a GPU worker will take of its device, added up before anything is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from lorad.errors import InvalidRequest
from lorad.models.config import ModelConfig
from lorad.models.products import layer_stacks
from lorad.models.weights import Tensors
from lorad.worker.gpu.linear import held_bytes, product_bytes
from lorad.worker.gpu.workspaces import Workspaces
from lorad.worker.limits import Limits

RUN_BYTES, SPAN_BYTES, TAG_BYTES = 16, 16 + 4, 4
"""Of the device table: a run; a module of a slot, with its scale; a slot."""


class Memory(NamedTuple):
    """Bytes, by what they're for."""

    weights: int
    pages: int
    activations: int
    workspaces: int
    table: int
    graphs: int
    """The most that they may take."""

    @classmethod
    def of(
        cls,
        weights: Tensors,
        limits: Limits,
        dtype: torch.dtype,
        *,
        dequantize: bool,
        rank_max: int,
        runs: int,
        graphs: int,
    ) -> Memory:
        """`weights` and `limits` of one rank; `rank_max`: of any adapter; `runs`: of the device table."""
        model, size = weights.config, dtype.itemsize
        spans = model.layers * len(model.adaptable())
        # Without their bytes: those of repacked tensors are copies, which would add up to a second model.
        tensors = {name: replace(weights.tensor(name), raw=np.empty((0, 0), np.uint8)) for name in model.shapes()}
        products = max(
            product_bytes([tensors[name] for name in stack.names], dequantize=dequantize)
            for layer in range(model.layers)
            for stack in layer_stacks(layer)
        )
        return cls(
            weights=sum(
                held_bytes(tensor, size, dequantize=dequantize or name == "embed") for name, tensor in tensors.items()
            ),
            pages=limits.pages * limits.page_bytes,
            activations=(limits.tokens * token_width(model) + limits.rows * row_width(model)) * size,
            workspaces=Workspaces(model, limits, rank_max, torch.device("meta")).bytes + products,
            table=limits.slots * (spans * SPAN_BYTES + TAG_BYTES) + runs * RUN_BYTES,
            graphs=graphs,
        )

    @property
    def total(self) -> int:
        """Of all."""
        return sum(self)

    def check(self, free: int) -> None:
        """Refuses what doesn't fit in `free` bytes, and says by how much less it would."""
        if self.total <= free:
            return
        parts = ", ".join(f"{name} {size:,}" for name, size in zip(self._fields, self, strict=True) if size)
        rest = free - (self.total - self.pages)
        way = (
            f"kv_cache_memory_bytes: at most {rest:,} beside them"
            if rest > 0
            else "the page pool has no room beside them: lower max_num_batched_tokens, max_num_seqs or max_lora_rank, "
            "or divide the model among more GPUs (tensor_parallel_size)"
        )
        raise InvalidRequest(
            f"{way}; the device has {free:,} bytes free, asked for are {self.total:,} ({parts})",
            code="device_memory",
            param="kv_cache_memory_bytes",
        )


def token_width(model: ModelConfig) -> int:
    """Numbers that the activations of a token take: hidden, its norm and a branch; q|k|v and attention; the MLP's."""
    heads = (2 * model.heads + 2 * model.kv_heads) * model.head_dim
    return 3 * model.hidden + heads + 3 * model.intermediate


def row_width(model: ModelConfig) -> int:
    """Likewise of a row that is sampled: its hidden and its branch, logits."""
    return 2 * model.hidden + model.vocab
