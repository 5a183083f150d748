"""`Limits`: what a worker has room for, and the core's limits that follow from it."""

from __future__ import annotations

from typing import Any, NamedTuple

from lorad.config import EngineConfig
from lorad.errors import InvalidRequest
from lorad.models.config import ModelConfig

SLOTS_MAX = 4096
"""Adapters in pages at once; a slot's row in the device table is small, the pages are the real limit."""


class Limits(NamedTuple):
    """Of one worker; whatever a plan within them holds, the worker can do."""

    pages: int
    page_tokens: int
    page_bytes: int
    rows: int
    tokens: int
    slots: int
    adapters_step: int
    vocab: int
    sequence_tokens: int
    sequence_limit: str
    """What limits them, in words."""

    @classmethod
    def of(cls, config: EngineConfig, model: ModelConfig, page_bytes: int) -> Limits:
        """Refuses a pool of fewer than two pages, and a `max_model_len` that has no room."""
        pages = config.kv_cache_memory_bytes // page_bytes
        if pages < 2:
            raise InvalidRequest(
                f"kv_cache_memory_bytes: a page has {page_bytes} bytes and two are the least, got "
                f"{config.kv_cache_memory_bytes}",
                code="option_range",
                param="kv_cache_memory_bytes",
            )
        tokens = min(model.context_length, pages * config.block_size)
        limit = "the context length" if tokens == model.context_length else "the page pool, kv_cache_memory_bytes"
        if config.max_model_len:
            if config.max_model_len > tokens:
                raise InvalidRequest(
                    f"max_model_len: at most {tokens} (the model's context is {model.context_length}, the pool holds "
                    f"{pages * config.block_size}), got {config.max_model_len}",
                    code="option_range",
                    param="max_model_len",
                )
            if config.max_model_len < tokens:
                limit = "max_model_len"
            tokens = config.max_model_len
        rows = config.max_num_seqs
        return cls(
            pages=pages,
            page_tokens=config.block_size,
            page_bytes=page_bytes,
            rows=rows,
            tokens=max(config.max_num_batched_tokens, rows),
            slots=min(SLOTS_MAX, pages),
            adapters_step=min(config.max_loras or rows, rows),
            vocab=model.vocab,
            sequence_tokens=tokens,
            sequence_limit=limit,
        )

    @property
    def columns(self) -> int:
        """Of the page table: pages of the longest sequence."""
        return -(-self.sequence_tokens // self.page_tokens)

    def core(self, config: EngineConfig, *, page_ins: int, page_in_first_us: int) -> dict[str, Any]:
        """The core's limits. `page_ins`: copies under way at once; `page_in_first_us`: those that take no longer come
        before the rows that want them."""
        return {
            "order": config.scheduling_policy,
            "pages": self.pages,
            "page_tokens": self.page_tokens,
            "rows_max": self.rows,
            "tokens_max": self.tokens,
            "prefill_chunk_max": self.tokens,
            "slots_max": self.slots,
            "adapters_step_max": self.adapters_step,
            "page_ins_max": page_ins,
            "page_in_first_us": page_in_first_us,
            "pinned_pages_max": config.max_pinned_bytes // self.page_bytes,
            "adapters_max": config.max_cpu_loras,
            "waiting_max": config.max_waiting,
            "wait_us_max": round(config.wait_seconds_max * 1e6),
            "urgent_after_us": round(config.urgent_after_seconds * 1e6),
            "preempt_after_tokens": config.preempt_after_tokens,
            "rows_reserved": config.reserved_seqs,
            "sequence_tokens_max": self.sequence_tokens,
            "vocab": self.vocab,
            "prefix_cache": int(config.enable_prefix_caching),
        }
