"""`Workspaces`: memory that kernels pass partial sums in, one after the other."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lorad.kernels.attention.kernel import decode_workspace
from lorad.kernels.lora.kernel import workspace_shape
from lorad.models.config import ModelConfig
from lorad.worker.limits import Limits

PROGRAMS = 256
"""Programs of a decode step's attention that keep a large GPU busy: about two for each multiprocessor."""
SPLITS_MAX = 16


def splits_of(rows: int, kv_heads: int) -> int:
    """Among how many programs a row's keys are divided."""
    return max(1, min(SPLITS_MAX, PROGRAMS // (rows * kv_heads)))


class Workspaces:
    """For the largest step; each call gives the part that it needs."""

    def __init__(self, config: ModelConfig, limits: Limits, rank_max: int, device: torch.device) -> None:
        """`rank_max`: of any adapter."""
        self._heads, self._kv_heads, self._head_dim = config.heads, config.kv_heads, config.head_dim
        self._rank_max = rank_max
        q_width = config.heads * config.head_dim
        sites = (
            (limits.tokens, config.hidden, 3),
            (limits.tokens, q_width, 1),
            (limits.tokens, config.intermediate, 1),
            (limits.rows, config.hidden, 1),
        )
        sums = max(math.prod(workspace_shape(*site, rank_max)) for site in sites)
        parts = max(
            decode_workspace(rows, config.heads, config.head_dim, splits_of(rows, config.kv_heads))
            for rows in range(1, limits.rows + 1)
        )
        self._sums = torch.empty(sums, dtype=torch.float32, device=device)
        self._parts = torch.empty(parts, dtype=torch.float32, device=device)

    @property
    def bytes(self) -> int:
        """Of all."""
        return self._sums.nbytes + self._parts.nbytes

    def lora(self, tokens: int, inputs: int, slices: int) -> Tensor:
        """What `lora` passes its partial sums in."""
        shape = workspace_shape(tokens, inputs, slices, self._rank_max)
        return self._sums[: math.prod(shape)].view(shape)

    def decode(self, rows: int) -> tuple[int, Tensor]:
        """(splits, workspace) of `attention_decode`."""
        splits = splits_of(rows, self._kv_heads)
        return splits, self._parts[: decode_workspace(rows, self._heads, self._head_dim, splits)]
