"""The CPU worker: arena, page table, device table, model. It does what a plan says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.adapters.image import AdapterImage
from lorad.config import EngineConfig
from lorad.engine.messages import Sampling, TokenLogprobs
from lorad.errors import InvalidRequest
from lorad.models.decoder import Decoder
from lorad.models.operators import Operators
from lorad.models.products import matrix_kinds
from lorad.models.weights import Weights
from lorad.worker.edits import LogitEdits, StepEdits
from lorad.worker.lines import SamplingLines
from lorad.worker.masks import Masks, Matcher, StepMasks
from lorad.worker.ops import Drawn, Ops, PageGeometry, StepArrays
from lorad.worker.page_ins import PageIn, PageIns
from lorad.worker.plan import Ints, Plan
from lorad.worker.prompt_scores import PromptScores
from lorad.worker.threads import start_computing
from lorad.worker.touch import TouchAhead

SLOTS_MAX = 4096
"""Adapters in pages at once; a slot's row in the device table is small, the pages are the real limit."""

PAGE_INS_MAX = 4
PAGE_IN_FIRST_US = 6000
"""Copies that take no longer come before the rows that want them: far less than the step that they'd wait for else."""

Kept = TypeVar("Kept")


class Samples(NamedTuple):
    """What a step sampled."""

    tokens: Ints
    """[samples], in plan order; `_core.SAMPLE_FAILED` where a row couldn't be computed."""
    logprobs: dict[int, TokenLogprobs]
    """By request, for those that asked."""


class Registered(NamedTuple):
    """An adapter that can be paged in."""

    tag: int
    image: AdapterImage


class Worker:
    """Computes plans on the CPU."""

    def __init__(
        self,
        weights: Weights,
        config: EngineConfig,
        *,
        on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
        on_page_in: Callable[[], None] = lambda: None,
    ) -> None:
        model = weights.config
        threads = start_computing(config.threads)
        self.dtype = kv_element(config.dtype)
        self.geometry = PageGeometry.of(model, config.block_size, self.dtype)
        self.pages = config.kv_cache_memory_bytes // self.geometry.page_bytes
        if self.pages < 2:
            raise InvalidRequest(
                f"kv_cache_memory_bytes: a page has {self.geometry.page_bytes} bytes and two are the least, got "
                f"{config.kv_cache_memory_bytes}",
                code="option_range",
                param="kv_cache_memory_bytes",
            )
        self.sequence_tokens_max = min(model.context_length, self.pages * config.block_size)
        self.sequence_limit = "the context length"
        if self.sequence_tokens_max < model.context_length:
            self.sequence_limit = "the page pool, kv_cache_memory_bytes"
        if config.max_model_len:
            if config.max_model_len > self.sequence_tokens_max:
                raise InvalidRequest(
                    f"max_model_len: at most {self.sequence_tokens_max} (the model's context is "
                    f"{model.context_length}, the pool holds {self.pages * config.block_size}), got "
                    f"{config.max_model_len}",
                    code="option_range",
                    param="max_model_len",
                )
            if config.max_model_len < self.sequence_tokens_max:
                self.sequence_limit = "max_model_len"
            self.sequence_tokens_max = config.max_model_len
        self.rows_max = config.max_num_seqs
        self.tokens_max = max(config.max_num_batched_tokens, self.rows_max)
        self.slots = min(SLOTS_MAX, self.pages)
        self.adapters_step_max = min(config.max_loras or self.rows_max, self.rows_max)

        # Zeroed by the operating system as it is touched: pages never used cost nothing.
        self.arena: NDArray[np.uint8] = np.zeros((self.pages, self.geometry.page_bytes), dtype=np.uint8)
        self._touch = TouchAhead(self.arena)
        columns = -(-self.sequence_tokens_max // config.block_size)
        self.page_table = np.zeros((self.rows_max, columns), dtype=np.int32)
        modules = model.adaptable()
        self.table = _core.AdapterTable(self.slots, self.geometry.page_bytes, model.layers, len(modules))
        self.page_ins = PageIns(self.arena, self.image, on_page_in)
        self.lines = SamplingLines(self.rows_max)
        self.prompt_scores = PromptScores(self.rows_max)
        self._line_request = np.zeros(self.rows_max, dtype=np.uint64)
        self._edits: dict[int, LogitEdits] = {}
        """By request, of those that change their logits."""
        self._matchers: dict[int, Matcher] = {}
        """By request, of those whose answers follow a grammar."""
        self._adapters: dict[int, Registered] = {}
        self.ops = Ops(self.arena, self.geometry, self.page_table, self.table, exact=config.deterministic)
        on_progress("weights", 0, 0)
        measured = total = 0

        def on_measure() -> None:
            nonlocal measured, total
            total = total or operators.unknown(matrix_kinds(weights, dequantize=config.dequantize))
            measured += 1
            on_progress("operators", measured, total)

        operators = Operators(deterministic=config.deterministic, one_copy=config.one_copy, on_measure=on_measure)
        self.model = Decoder(
            weights,
            self.ops,
            operators,
            tokens_max=self.tokens_max,
            rows_max=self.rows_max,
            positions_max=self.sequence_tokens_max,
            dequantize=config.dequantize,
        )
        self._masks = Masks(self.rows_max, model.vocab, threads)
        self._config = config

    def core_config(self) -> dict[str, Any]:
        """The core's limits that follow from this worker's capacities: whatever a plan holds, the worker can do."""
        return {
            "order": self._config.scheduling_policy,
            "pages": self.pages,
            "page_tokens": self.geometry.page_tokens,
            "rows_max": self.rows_max,
            "tokens_max": self.tokens_max,
            "prefill_chunk_max": self.tokens_max,
            "slots_max": self.slots,
            "adapters_step_max": self.adapters_step_max,
            "page_ins_max": PAGE_INS_MAX,
            "page_in_first_us": PAGE_IN_FIRST_US,
            "pinned_pages_max": self._config.max_pinned_bytes // self.geometry.page_bytes,
            "adapters_max": self._config.max_cpu_loras,
            "waiting_max": self._config.max_waiting,
            "wait_us_max": round(self._config.wait_seconds_max * 1e6),
            "urgent_after_us": round(self._config.urgent_after_seconds * 1e6),
            "preempt_after_tokens": self._config.preempt_after_tokens,
            "rows_reserved": self._config.reserved_seqs,
            "sequence_tokens_max": self.sequence_tokens_max,
            "vocab": self.model.config.vocab,
            "prefix_cache": int(self._config.enable_prefix_caching),
        }

    # adapters

    def add_adapter(self, adapter: int, tag: int, image: AdapterImage) -> None:
        """Keeps an adapter's image, to be paged in when a plan says so."""
        self._adapters[adapter] = Registered(tag, image)

    def image(self, adapter: int) -> AdapterImage:
        """The pages of a registered adapter."""
        return self._adapters[adapter].image

    def drop_adapter(self, adapter: int) -> None:
        """Forgets an adapter that no plan can name any more."""
        del self._adapters[adapter]

    def finished_page_ins(self) -> list[PageIn]:
        """The page-ins that have ended; from here on the slots of those without an error answer for their adapters."""
        return [done if done.error is not None else self._enter(done) for done in self.page_ins.finished()]

    def _enter(self, done: PageIn) -> PageIn:
        """Has a slot answer for its adapter. Where that fails the page-in has failed, and is told with the others."""
        try:
            registered = self._adapters[done.adapter]
            self.table.set(done.slot, registered.tag, registered.image.layout, done.pages)
        except Exception as failure:
            return done.failed(failure)
        return done

    def wait_for_page_ins(self) -> None:
        """For those of a plan without rows, if they're as short as the core takes them for: others run beside steps."""
        self.page_ins.wait(2e-6 * PAGE_IN_FIRST_US)

    # requests

    def expect(
        self, request: int, sampling: Sampling, prompt: NDArray[np.uint32], matcher: Matcher | None = None
    ) -> None:
        """Keeps what outlasts a line of a request that was queued, until it's forgotten."""
        if LogitEdits.wanted(sampling):
            self._edits[request] = LogitEdits(sampling, prompt, self.model.config.vocab)
        if matcher is not None:
            self._matchers[request] = matcher
        if sampling.prompt_logprobs >= 0:
            self.prompt_scores.expect(request, prompt, sampling.prompt_logprobs)

    def forget(self, request: int) -> str:
        """The request has ended. Gives what its grammar failed at, or ""."""
        self._edits.pop(request, None)
        matcher = self._matchers.pop(request, None)
        return "" if matcher is None else matcher.error

    # a step

    def apply(self, plan: Plan, sampling: Mapping[int, Sampling]) -> None:
        """Page-ins to begin, page copies, table edits, cleared slots, lines opened; `sampling`: by request.

        Page-ins are first, and none fails here: the core waits for the end of each, also when it's told that the plan
        has failed. All else may be half done then. Copies, edits and lines are those of the plan's own rows, whose
        requests end with it, and a slot that should be empty is filled before a row names it.
        """
        page_ins = plan.page_ins()
        for adapter, slot, pages in page_ins:
            self.page_ins.start(adapter, slot, pages)
        copies = plan.copies
        if copies:
            self.arena[plan.copy_target[:copies]] = self.arena[plan.copy_source[:copies]]
        edits = plan.edits
        self.page_table[plan.edit_line[:edits], plan.edit_col[:edits]] = plan.edit_page[:edits]
        if edits:
            self._touch.used((int(plan.edit_page[:edits].max()) + 1) * self.geometry.page_bytes)
        for slot in plan.clear_slot[: plan.cleared].tolist():
            self.table.clear(slot)
        for _, _, pages in page_ins:
            self._touch.used((int(pages.max()) + 1) * self.geometry.page_bytes)
        for line, request in plan.opened():
            self.lines.open(line, sampling[request])
            self._line_request[line] = request

    def run(self, plan: Plan) -> Samples:
        """Computes the rows of a plan and samples those that are due."""
        step = StepArrays.of(plan)
        lines = step.sample_line
        edits, matchers = self._of(lines, self._edits), self._of(lines, self._matchers)
        masks = self._masks.begin(matchers)
        try:
            logits = self.model.forward(step)
        finally:
            # Whatever went wrong: the next step's masks are written to the same memory.
            if masks is not None:
                masks.words()
        best = self.lines.best_wanted(lines)
        changes = self._changes(edits, masks)
        drawn = self.ops.sample(logits, self.lines, lines, step.token_pos[step.sample_token], best, changes)
        if changes is not None:
            for edit, matcher, token in zip(edits, matchers, drawn.tokens.tolist(), strict=True):
                if token != _core.SAMPLE_FAILED:
                    if edit is not None:
                        edit.took(token)
                    if matcher is not None:
                        matcher.took(token)
        if self.prompt_scores:  # after all else: what is sampled isn't kept waiting for, and has other logits' place
            self.prompt_scores.look(step, self._line_request[step.token_line], self.model.logits_of)
        return Samples(drawn.tokens, self._logprobs(lines, drawn) if best >= 0 else {})

    def _of(self, lines: Ints, kept: dict[int, Kept]) -> list[Kept | None]:
        """What is kept of each row's request."""
        if not kept:
            return [None] * len(lines)
        return [kept.get(request) for request in self._line_request[lines].tolist()]

    @staticmethod
    def _changes(edits: list[LogitEdits | None], masks: StepMasks | None) -> StepEdits | None:
        """What the rows change of their logits. None: no row changes any."""
        if masks is not None:
            for row, edit in enumerate(edits):
                # A grammar that has come to its end is the end, however few tokens there are.
                if edit is not None and edit.ends and masks.row[row] >= 0 and masks.only(row, edit.ends):
                    edit.let_end()
        return StepEdits(edits, masks) if masks is not None or any(edits) else None

    def _logprobs(self, lines: Ints, drawn: Drawn) -> dict[int, TokenLogprobs]:
        found = {}
        for index in np.flatnonzero(self.lines.logprobs[lines] >= 0).tolist():
            line = int(lines[index])
            count = int(self.lines.logprobs[line])
            ids, values = drawn.best_tokens[index, :count], drawn.best_logprobs[index, :count]
            found[int(self._line_request[line])] = TokenLogprobs(
                float(drawn.logprobs[index]), list(zip(ids.tolist(), values.tolist(), strict=True))
            )
        return found

    def close(self) -> None:
        """Ends the threads that copy, touch and compute masks."""
        self._masks.close()
        self.page_ins.close()
        self._touch.close()


def kv_element(dtype: str) -> str:
    """The element type of KV pages: f32 for the reference, else f16, which every AVX2 CPU widens in one instruction."""
    return {"auto": "f16", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
