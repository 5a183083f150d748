"""A real worker, and a core for each scene that leads it to the plan that the scene asks for.

Steps before that plan are planned, applied and committed, but not computed: what lies in the pages doesn't change how
long a step takes, and a context of a thousand tokens then costs nothing to make.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from random import Random

import numpy as np
from sample import Row
from scene import CONTEXT_MAX, PAGE_IN, Scene

from lorad import _core
from lorad.adapters.image import AdapterImage
from lorad.config import EngineConfig, check
from lorad.engine.messages import Sampling
from lorad.models.weights import Weights
from lorad.worker.plan import PAGE_INS, Ints, Plan
from lorad.worker.worker import Worker

STEPS_MAX = 400
"""A scene that hasn't led to its plan by then is left."""
SAMPLING = Sampling(max_tokens=4096, temperature=0.0)
NO_TOKENS = np.empty(0, dtype=np.int32)

PageIn = tuple[int, int, Ints]
"""Adapter, slot, pages."""


class Rig:
    """One worker."""

    def __init__(self, weights: Weights, pool_bytes: int, rows_max: int) -> None:
        self.weights = weights
        config = check(EngineConfig(max_num_seqs=rows_max, kv_cache_memory_bytes=pool_bytes))
        self._copied = threading.Event()
        self.worker = Worker(weights, config, on_page_in=self._copied.set)
        self._fill()

    def _fill(self) -> None:
        """Random KV everywhere: pages that were never written would all be the one zero page of the system."""
        arena, values = self.worker.arena, np.random.default_rng(0)
        block = values.standard_normal((64, arena.shape[1] // 2), dtype=np.float32).astype(np.float16).view(np.uint8)
        for first in range(0, len(arena), len(block)):
            part = arena[first : first + len(block)]
            part[:, : block.shape[1]] = block[: len(part)]

    def copied(self) -> list[tuple[int, int, int]]:
        """Waits for all page-ins that run; (adapter, slot, pages) of each."""
        done = []
        while self.worker.page_ins.pending:
            self._copied.wait()
            self._copied.clear()
            done += [(copy.adapter, copy.slot, len(copy.pages)) for copy in self.worker.finished_page_ins()]
        return done


class Stage:
    """One scene under way, on a core of its own. `close` leaves the worker as it was."""

    def __init__(self, rig: Rig, images: Sequence[AdapterImage], scene: Scene, skip: int) -> None:
        """`images`: by the scene's numbers. `skip`: plans of the scene's kind that are let by."""
        self._rig, self.worker, self._images, self.scene, self._skip = rig, rig.worker, images, scene, skip
        rows = len(scene.of) + (scene.cold is not None)
        limits = self.worker.core_config() | {
            "rows_max": rows,
            "tokens_max": max(scene.tokens_max, rows),
            "prefill_chunk_max": scene.tokens_max,
            "sequence_tokens_max": min(4 * CONTEXT_MAX, self.worker.limits.sequence_tokens),
        }
        self._core = _core.Core(**limits)
        self.plan = Plan(self._core.plan_layout(), self._core.plan_length())
        self.page_ins: list[PageIn] = []
        """Those of the plan that is timed; they haven't been started."""
        self._pages: dict[int, int] = {}
        self._ids: dict[int, int] = {}
        self._requests = 0
        self._random = Random(scene.seed)

    def reach(self) -> bool:
        """Steps until the plan is there and everything but its rows is done; False: it doesn't come."""
        scene, late = self.scene, False
        if scene.kind == PAGE_IN:
            return self._cold(scene.of[0])
        for prompt, adapter in zip(scene.prompts, scene.of, strict=False):
            self._add(prompt, adapter)
        for _ in range(STEPS_MAX):
            if scene.late and not late and self._all_decode():
                late = True
                for prompt, adapter in zip(scene.late, scene.of[len(scene.prompts) :], strict=True):
                    self._add(prompt, adapter)
            number = self._step()
            if number is None:
                return False
            if self._found():
                self._skip -= 1
                if self._skip < 0 and scene.cold is None:
                    return True
                if self._skip < 0:
                    self._commit(number)
                    return self._cold(scene.cold)
            self._commit(number)
        return False

    def rows(self) -> list[Row]:
        """The rows of the plan."""
        plan, rows = self.plan, []
        for index in range(plan.rows):
            slot = int(plan.row_slot[index])
            count = int(plan.row_offset[index + 1] - plan.row_offset[index])
            sample = bool(plan.row_sample[index])
            rows.append(Row(int(plan.row_start[index]), count, sample, slot, self._pages.get(slot, 0)))
        return rows

    @property
    def page_in_pages(self) -> int:
        """Pages of the plan's page-ins."""
        return sum(len(pages) for *_, pages in self.page_ins)

    def start_page_ins(self) -> None:
        """Starts the plan's page-ins, as often as it's called."""
        for adapter, slot, pages in self.page_ins:
            self.worker.page_ins.start(adapter, slot, pages)

    def close(self) -> None:
        """Empties what was filled."""
        self._rig.copied()
        for slot in [*self._pages, *(slot for _, slot, _ in self.page_ins)]:
            self.worker.table.clear(slot)
        for adapter in self._ids.values():
            self.worker.drop_adapter(adapter)

    def _add(self, prompt: int, adapter: int | None) -> None:
        self._requests += 1
        tokens = [self._random.randrange(self._rig.weights.config.vocab) for _ in range(prompt)]
        self._core.add(0, self._requests, None if adapter is None else self._register(adapter), tokens, 2048)

    def _register(self, adapter: int) -> int:
        if adapter not in self._ids:
            image = self._images[adapter]
            id = self._core.register(adapter + 1, image.layout.pages, self._rig.weights.config.layers)
            self.worker.add_adapter(id, adapter + 1, image)
            self._ids[adapter] = id
        return self._ids[adapter]

    def _plan(self) -> int | None:
        return self._core.step(0, self.plan.array)

    def _apply(self) -> None:
        self.worker.apply(self.plan, {request: SAMPLING for _, request in self.plan.opened()})

    def _commit(self, number: int) -> None:
        self._core.commit(0, number, np.zeros(self.plan.samples, dtype=np.int32))

    def _step(self) -> int | None:
        """Plans and applies a step that has rows, and waits for all copies; None: nothing can run."""
        while True:
            number = self._plan()
            if number is not None:
                self._apply()
            waited = self._take_copies()
            if number is not None and self.plan.rows:
                return number
            if number is not None:
                self._core.commit(0, number, NO_TOKENS)
            elif not waited:
                return None

    def _take_copies(self) -> bool:
        done = self._rig.copied()
        for adapter, slot, pages in done:
            self._core.page_in_done(0, adapter)
            self._pages[slot] = pages
        return bool(done)

    def _all_decode(self) -> bool:
        """Whether all of `prompts` are computed."""
        count = len(self.scene.prompts)
        return not count or (self.plan.rows == self.plan.tokens == self.plan.samples == count)

    def _found(self) -> bool:
        """Whether this is a plan of the scene's kind."""
        rows = self.rows()
        chunks = sum(row.count > 1 or row.start == 0 or not row.sample for row in rows)
        if not self.scene.late:
            return chunks == 0 and len(rows) == len(self.scene.prompts)
        return chunks > 0 and (chunks < len(rows)) == (self.scene.kind == "mixed")

    def _cold(self, adapter: int) -> bool:
        """Makes the plan that also pages `adapter` in; the copy isn't started."""
        self._add(3, adapter)
        if self._plan() is None:
            return False
        self.page_ins = self.plan.page_ins()
        self.plan.header[PAGE_INS] = 0
        self._apply()
        return bool(self.page_ins)
