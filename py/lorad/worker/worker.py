"""The CPU worker: arena, page table, device table, model. It does what a plan says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lorad import _core
from lorad.adapters.image import AdapterImage
from lorad.config import EngineConfig
from lorad.engine.messages import Sampling
from lorad.errors import LoradError
from lorad.models.decoder import Decoder
from lorad.models.operators import Operators
from lorad.models.products import matrix_kinds
from lorad.models.weights import Weights
from lorad.worker.limits import Limits
from lorad.worker.ops import Ops, PageGeometry, StepArrays
from lorad.worker.page_ins import ArenaCopy, PageIn, PageIns
from lorad.worker.plan import Plan
from lorad.worker.sampler import Sampler, Samples
from lorad.worker.threads import start_computing
from lorad.worker.touch import TouchAhead

PAGE_INS_MAX = 4
PAGE_IN_FIRST_US = 6000
"""Copies that take no longer come before the rows that want them: far less than the step that they'd wait for else."""


class Registered(NamedTuple):
    """An adapter that can be paged in."""

    tag: int
    image: AdapterImage


class Computed(NamedTuple):
    """A plan whose rows have been computed."""

    samples: Samples
    on_device: bool = False


class Worker:
    """Computes plans on the CPU."""

    lost: LoradError | None = None
    """It's always here."""

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
        self.limits = limits = Limits.of(config, model, self.geometry.page_bytes)

        # Zeroed by the operating system as it is touched: pages never used cost nothing.
        self.arena: NDArray[np.uint8] = np.zeros((limits.pages, limits.page_bytes), dtype=np.uint8)
        self._touch = TouchAhead(self.arena)
        self.page_table = np.zeros((limits.rows, limits.columns), dtype=np.int32)
        self.table = _core.AdapterTable(limits.slots, limits.page_bytes, model.layers, len(model.adaptable()))
        self.page_ins = PageIns(ArenaCopy(self.arena, self.image), on_page_in, bytes_per_s=config.page_in_bytes_per_s)
        self.sampler = Sampler(limits.rows, model.vocab, threads)
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
            tokens_max=limits.tokens,
            rows_max=limits.rows,
            positions_max=limits.sequence_tokens,
            dequantize=config.dequantize,
        )
        self._config = config

    def core_config(self) -> dict[str, Any]:
        """The core's limits that follow from this worker's capacities: whatever a plan holds, the worker can do."""
        return self.limits.core(self._config, page_ins=PAGE_INS_MAX, page_in_first_us=PAGE_IN_FIRST_US)

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

    # a step

    def apply(self, plan: Plan, sampling: Mapping[int, Sampling]) -> None:
        """Page copies, table edits, cleared slots, lines opened, page-ins to begin; `sampling`: by request.

        Page-ins are begun whatever fails before: the core waits for the end of each, also when it's told that the plan
        has failed. All else may be half done then. Copies, edits and lines are those of the plan's own rows, whose
        requests end with it, and a slot that should be empty is filled before a row names it.
        """
        try:
            copies, edits = plan.copies, plan.edits
            if copies:
                self.arena[plan.copy_target[:copies]] = self.arena[plan.copy_source[:copies]]
            self.page_table[plan.edit_line[:edits], plan.edit_col[:edits]] = plan.edit_page[:edits]
            for slot in plan.clear_slot[: plan.cleared].tolist():
                self.table.clear(slot)
            for line, request in plan.opened():
                self.sampler.open(line, request, sampling[request])
        finally:
            page_ins = plan.page_ins()
            for adapter, slot, pages in page_ins:
                self.page_ins.start(adapter, slot, pages)
        taken = [plan.edit_page[:edits], *(pages for _, _, pages in page_ins)]
        if last := max(int(pages.max(initial=0)) for pages in taken):
            self._touch.used((last + 1) * self.geometry.page_bytes)

    plans_max = 1

    def start(self, plan: Plan) -> Computed:
        """Computes the rows of a plan and samples those that are due."""
        return Computed(self.run(plan))

    def finish(self, started: Computed) -> Samples:
        """What `start` computed."""
        return started.samples

    def run(self, plan: Plan) -> Samples:
        """Computes the rows of a plan and samples those that are due."""
        step = StepArrays.of(plan)
        draw = self.sampler.begin(step.sample_line)
        try:
            logits = self.model.forward(step)
        finally:
            draw.settle()
        samples = self.sampler.finish(draw, logits, step.token_pos[step.sample_token])
        # After all else: what is sampled isn't kept waiting for, and has other logits' place.
        if self.sampler.prompt_scores:
            self.sampler.prompt_scores.look(step, self.sampler.request_of(step.token_line), self.model.logits_of)
        return samples

    def use_idle(self) -> bool:
        """Nothing waits for a time without requests here."""
        return False

    def close(self) -> None:
        """Ends the threads that copy, touch and compute masks."""
        self.sampler.close()
        self.page_ins.close()
        self._touch.close()


def kv_element(dtype: str) -> str:
    """The element type of KV pages: f32 for the reference, else f16, which every AVX2 CPU widens in one instruction."""
    return {"auto": "f16", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
