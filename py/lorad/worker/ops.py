"""The operators of a step on a CPU, bound to the worker's arena and tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.models.config import ModelConfig
from lorad.worker.plan import Ints, Plan

F32 = NDArray[np.float32]


class HeadNorms(NamedTuple):
    """RMS norms of each head of q and k."""

    q: F32
    """[head_dim]."""
    k: F32
    eps: float


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


class Ops:
    """lorad-cpu's operators with the arena, the page table and the device table filled in."""

    def __init__(
        self,
        arena: NDArray[np.uint8],
        geometry: PageGeometry,
        page_table: Ints,
        table: _core.AdapterTable,
        *,
        exact: bool,
    ) -> None:
        """`exact`: a row's bits don't depend on the rows beside it."""
        self._arena = arena
        self._geometry: tuple[int, int, int, int, str] = (
            geometry.layers,
            geometry.kv_heads,
            geometry.page_tokens,
            geometry.head_dim,
            geometry.element,
        )
        self._page_table = page_table
        self._table = table
        self._exact = exact

    rms_norm = staticmethod(_core.rms_norm)
    add_rms_norm = staticmethod(_core.add_rms_norm)
    lora_embed = staticmethod(_core.lora_embed)

    def adapters(self, step: StepArrays) -> _core.StepAdapters | None:
        """The step's adapters; None: all of its rows are the base's.

        A group whose slot holds another generation gets NaN, which `sample` reports as a failed row.
        """
        if not len(step.group_slot):
            return None
        groups = step.group_slot, step.group_tag, step.group_begin, step.group_end
        return _core.StepAdapters(self._arena, self._table, *groups, exact=self._exact)

    def sampled_adapters(self, step: StepArrays) -> _core.StepAdapters | None:
        """Likewise, of the rows that are sampled alone: groups are ranges of them instead of tokens."""
        if not len(step.group_slot):
            return None
        begin, end = (
            np.searchsorted(step.sample_token, tokens).astype(np.int32) for tokens in (step.group_begin, step.group_end)
        )
        groups = step.group_slot, step.group_tag, begin, end
        return _core.StepAdapters(self._arena, self._table, *groups, exact=self._exact)

    def rope_write(
        self, step: StepArrays, qkv: F32, cos: F32, sin: F32, layer: int, norms: HeadNorms | None = None
    ) -> None:
        """Norms the heads of q and k, rotates them in place, and writes k and v into their pages."""
        _core.rope_write(
            qkv, cos, sin, step.token_pos, step.token_line, self._page_table, self._arena, self._geometry, layer, norms
        )

    def attention(
        self, step: StepArrays, out: F32, qkv: F32, layer: int, scale: float, window: int | None = None
    ) -> None:
        """Causal attention of the step's tokens over their rows' pages; `window`: keys that a query sees at most."""
        _core.paged_attention(
            out,
            qkv,
            self._arena,
            self._geometry,
            layer,
            self._page_table,
            step.row_line,
            step.row_start,
            step.row_offset,
            scale,
            window,
        )
