"""The operators of a step on a CPU, bound to the worker's arena and tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.models.config import ModelConfig
from lorad.worker.plan import Ints, Plan

F32 = NDArray[np.float32]


class PageGeometry(NamedTuple):
    """How KV lies in a page: `[layer][k, v][kv_head][token][head_dim]` of `element`."""

    layers: int
    kv_heads: int
    page_tokens: int
    head_dim: int
    element: str
    """f32, f16 or bf16."""

    @classmethod
    def of(cls, config: ModelConfig, page_tokens: int, element: str) -> PageGeometry:
        """The geometry for a model."""
        return cls(config.layers, config.kv_heads, page_tokens, config.head_dim, element)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, rounded up to 64 so that every page begins on a cache line."""
        size = 4 if self.element == "f32" else 2
        used = self.layers * 2 * self.kv_heads * self.page_tokens * self.head_dim * size
        return -(-used // 64) * 64


class StepArrays(NamedTuple):
    """The part of a plan that operators read, cut to its length."""

    tokens: int
    token_id: Ints
    token_pos: Ints
    token_line: Ints
    row_line: Ints
    row_start: Ints
    row_offset: Ints
    group_slot: Ints
    group_tag: Ints
    group_begin: Ints
    group_end: Ints
    sample_token: Ints
    """Index of each sampled row's last token."""
    sample_line: Ints

    @classmethod
    def of(cls, plan: Plan) -> StepArrays:
        """Views of `plan`; only the sample indices are computed."""
        rows, tokens, groups = plan.rows, plan.tokens, plan.groups
        sampled = np.flatnonzero(plan.row_sample[:rows])
        return cls(
            tokens,
            plan.token_id[:tokens],
            plan.token_pos[:tokens],
            plan.token_line[:tokens],
            plan.row_line[:rows],
            plan.row_start[:rows],
            plan.row_offset[: rows + 1],
            plan.group_slot[:groups],
            plan.group_tag[:groups],
            plan.group_begin[:groups],
            plan.group_end[:groups],
            plan.row_offset[1 : rows + 1][sampled] - 1,
            plan.row_line[:rows][sampled],
        )
