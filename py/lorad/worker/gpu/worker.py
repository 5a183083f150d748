"""The GPU worker: it does what a plan says on a device, decode steps by graphs that know no adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lorad.adapters.image import AdapterImage
from lorad.config import EngineConfig
from lorad.engine.messages import Sampling, TokenLogprobs
from lorad.errors import LoradError
from lorad.kernels.pages import Pages
from lorad.models.weights import Tensors
from lorad.worker.gpu.buffers import QUERIES, SAMPLE_TILES, SAMPLES, TILES, StepBuffers
from lorad.worker.gpu.capture import Capture
from lorad.worker.gpu.collective import Alone, Collective
from lorad.worker.gpu.decoder import DeviceDecoder, Shape
from lorad.worker.gpu.graphs import Graphs, Key
from lorad.worker.gpu.memory import Memory
from lorad.worker.gpu.operators import Operators
from lorad.worker.gpu.others import Nobody, Others
from lorad.worker.gpu.page_ins import DeviceCopy, PinnedImages
from lorad.worker.gpu.runs import Chunks, chunks_of, runs_for
from lorad.worker.gpu.sampling import Brought, DeviceSampling
from lorad.worker.gpu.table import SlotTable
from lorad.worker.limits import Limits
from lorad.worker.ops import F32, PageGeometry, StepArrays
from lorad.worker.page_ins import PageIn, PageIns
from lorad.worker.plan import Ints, Plan
from lorad.worker.sampler import Draw, Sampler, Samples

PAGE_INS_MAX = 4
PAGE_IN_FIRST_US = 2000
"""Copies that take no longer come before the rows that want them: 84 MB over a link of 55 GB/s take 1.5 ms."""
GRAPH_BYTES_MAX = 1 << 29
CAPTURE_SECONDS = 5.0
"""Of the start; what isn't captured by then is in idle time."""

DTYPES = {"auto": torch.bfloat16, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ELEMENTS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class Registered(NamedTuple):
    """An adapter that can be paged in."""

    tag: int
    image: AdapterImage
    chunks: Chunks


class Running(NamedTuple):
    """A plan that the device computes."""

    step: StepArrays
    draw: Draw
    left: Ints
    """Which sampled rows are left to the host."""
    tokens: Brought
    on_device: bool
    """All its tokens are the device's, and nobody asks for more of its logits."""


class GpuWorker:
    """Computes plans on a device."""

    def __init__(
        self,
        weights: Tensors,
        config: EngineConfig,
        *,
        device: torch.device,
        operators: Operators,
        capture: Capture | None,
        capture_seconds: float = CAPTURE_SECONDS,
        collective: Collective | None = None,
        others: Others | None = None,
        on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
        on_page_in: Callable[[], None] = lambda: None,
    ) -> None:
        """`capture`: None: every step is started kernel by kernel. `capture_seconds`: of the start, for graphs.
        `collective`: of the ranks that the model is divided among; `weights` are this one's. `others`: ranks that do
        what this one does."""
        self._collective = collective = collective or Alone()
        self._others: Others = others or Nobody()
        model, dtype = weights.config, DTYPES[config.dtype]
        self.dtype = ELEMENTS[dtype]
        self.device = device
        self.geometry = PageGeometry.of(model, config.block_size, self.dtype)
        self.limits = limits = Limits.of(config, model, self.geometry.page_bytes)
        self._config = config
        self.plans_max = steps = 2 if config.async_scheduling and self._others.alone else 1
        modules = model.adaptable()
        places = model.layers * len(modules)
        whole = all(wide % 4 == 0 for module in modules for wide in module[1:])
        runs = runs_for(limits.slots, places, limits.pages, rank_max=config.max_lora_rank, whole_lines=whole)
        graphs = 0 if capture is None else GRAPH_BYTES_MAX
        self.memory = Memory.of(
            weights,
            limits,
            dtype,
            dequantize=config.dequantize,
            rank_max=config.max_lora_rank,
            runs=runs,
            graphs=graphs,
        )
        if device.type == "cuda":
            self.memory.check(torch.cuda.mem_get_info(device)[0])

        self.arena = torch.zeros((limits.pages, limits.page_bytes), dtype=torch.uint8, device=device)
        # One line more than there are: what a step's room for edits has left goes there.
        self._page_table = torch.zeros((limits.rows + 1, limits.columns), dtype=torch.int32, device=device)
        pages = Pages(
            self.arena,
            self._page_table,
            model.layers,
            model.kv_heads,
            config.block_size,
            model.head_dim,
            str(dtype).removeprefix("torch."),
        )
        self.table = SlotTable(limits.slots, model.layers, len(modules), runs, limits.page_bytes, device)
        self._images = PinnedImages(
            self.image, limits.page_bytes, config.image_cache_bytes, pinned=device.type == "cuda"
        )
        self.page_ins = PageIns(
            DeviceCopy(self.arena, self._images, self._others.wait_for_copy),
            on_page_in,
            bytes_per_s=config.page_in_bytes_per_s,
        )
        self.buffers = StepBuffers(limits.rows, limits.tokens, limits.columns, device, steps=steps)
        self.sampler = Sampler(limits.rows, model.vocab, 1)
        self._sampling = DeviceSampling(limits.rows, model.vocab, device, operators.sample, steps=steps)
        self._modules = len(modules)
        self._adapters: dict[int, Registered] = {}
        on_progress("weights", 0, 0)
        self.model = DeviceDecoder(
            weights,
            operators,
            dtype=dtype,
            device=device,
            pages=pages,
            table=self.table.table,
            inputs=self.buffers.device,
            limits=limits,
            rank_max=config.max_lora_rank,
            deterministic=config.deterministic,
            dequantize=config.dequantize,
            collective=collective,
        )
        self.graphs: Graphs | None = None
        if capture is not None:
            self.graphs = Graphs(
                capture,
                self._decode,
                self._empty,
                rows_max=limits.rows,
                bytes_max=GRAPH_BYTES_MAX,
                on_capture=self._others.capture,
            )
            self._capture(capture_seconds)

    def core_config(self) -> dict[str, Any]:
        """The core's limits that follow from this worker's capacities: whatever a plan holds, the worker can do."""
        limits = self.limits.core(self._config, page_ins=PAGE_INS_MAX, page_in_first_us=PAGE_IN_FIRST_US)
        return {**limits, "plans_max": self.plans_max}

    @property
    def lost(self) -> LoradError | None:
        """Why it can't go on, if another rank is gone."""
        return self._others.lost

    # adapters

    def add_adapter(self, adapter: int, tag: int, image: AdapterImage) -> None:
        """Keeps an adapter's image, to be paged in when a plan says so."""
        self._adapters[adapter] = Registered(tag, image, chunks_of(image.layout, image.modules, self._modules))
        self._others.add_adapter(adapter, tag, image)

    def image(self, adapter: int) -> AdapterImage:
        """The pages of a registered adapter."""
        return self._adapters[adapter].image

    def drop_adapter(self, adapter: int) -> None:
        """Forgets an adapter that no plan can name any more."""
        del self._adapters[adapter]
        self._images.drop(adapter)
        self._others.drop_adapter(adapter)

    def finished_page_ins(self) -> list[PageIn]:
        """The page-ins that have ended; from here on the slots of those without an error answer for their adapters."""
        done = [done if done.error is not None else self._enter(done) for done in self.page_ins.finished()]
        return self._others.entered(done)

    def _enter(self, done: PageIn) -> PageIn:
        """Has a slot answer for its adapter. Where that fails the page-in has failed, and is told with the others."""
        try:
            registered = self._adapters[done.adapter]
            self.table.clear(done.slot)  # a plan that failed may not have come to it
            self.table.set(done.slot, registered.tag, registered.chunks, done.pages)
        except Exception as failure:
            return done.failed(failure)
        return done

    def wait_for_page_ins(self) -> None:
        """For those of a plan without rows, if they're as short as the core takes them for: others run beside steps."""
        self.page_ins.wait(2e-6 * PAGE_IN_FIRST_US)

    # a step

    def apply(self, plan: Plan, sampling: Mapping[int, Sampling]) -> None:
        """Page copies, cleared slots, lines opened, page-ins to begin; `sampling`: by request. Table edits come with
        the step that they're of.

        Page-ins are begun whatever fails before: the core waits for the end of each, also when it's told that the plan
        has failed.
        """
        self._others.apply(plan)
        try:
            if count := plan.copies:
                target, source = (
                    torch.from_numpy(places[:count].astype(np.int64)).to(self.device)
                    for places in (plan.copy_target, plan.copy_source)
                )
                self.arena.index_copy_(0, target, self.arena.index_select(0, source))
            for slot in plan.clear_slot[: plan.cleared].tolist():
                self.table.clear(slot)
            for line, request in plan.opened():
                self.sampler.open(line, request, sampling[request])
                self._sampling.open(line, sampling[request])
        finally:
            for adapter, slot, pages in plan.page_ins():
                self.page_ins.start(adapter, slot, pages)

    def start(self, plan: Plan) -> Running:
        """Starts the rows of a plan. Waits for nothing, but for other ranks."""
        step = StepArrays.of(plan)
        left = self._sampling.left(step.sample_line)
        draw = self.sampler.begin(step.sample_line)
        try:
            with self._others.together():
                self._others.run()
                tokens = self._start(plan, step)
                if not self._others.alone:
                    tokens.wait(0)
        except BaseException:
            draw.settle()
            raise
        return Running(step, draw, left, tokens, not len(left) and not self.sampler.prompt_scores)

    def finish(self, started: Running) -> Samples:
        """Waits for the rows of a plan, and samples those that are left to the host."""
        step, draw, left, found = started.step, started.draw, started.left, dict[int, TokenLogprobs]()
        try:
            tokens = started.tokens.wait(len(step.sample_line))  # the step's only wait
            if len(left):
                logits = self._on_host(self.model.logits[torch.from_numpy(left).to(self.device)])
                tokens[left], found = self.sampler.finish(
                    draw.only(left), logits, step.token_pos[step.sample_token[left]]
                )
        finally:
            draw.settle()
        if self.sampler.prompt_scores:
            self.sampler.prompt_scores.look(step, self.sampler.request_of(step.token_line), self._logits_of)
        return Samples(tokens, found)

    def run(self, plan: Plan) -> Samples:
        """Computes the rows of a plan and samples those that are due."""
        return self.finish(self.start(plan))

    def follow(self, plan: Plan) -> None:
        """Computes the rows of a plan whose samples another rank takes."""
        self._start(plan, StepArrays.of(plan)).wait(0)

    def follow_logits(self, plan: Plan, tokens: Ints) -> None:
        """Likewise the logits of other tokens of the step."""
        self._on_host(self._start_logits(StepArrays.of(plan)._replace(sample_token=tokens)))

    def _on_host(self, logits: Tensor) -> F32:
        """f32; waits for what was started."""
        copied: F32 = logits.float().cpu().numpy()
        return copied

    def _start(self, plan: Plan, step: StepArrays) -> Brought:
        """Starts a step, and the copy of what it samples."""
        buffers, samples = self.buffers, len(step.sample_line)
        buffers.turn()
        buffers.fill(plan)
        buffers.sample(step)
        edits = plan.edits
        places, pages = plan.edit_line[:edits] * self.limits.columns + plan.edit_col[:edits], plan.edit_page[:edits]
        for begin in range(0, edits, buffers.edits_max):
            if begin:  # a long prompt's first step has more than a step's room
                buffers.send()
                self._edit_pages()
                self._page_table[0].cpu()  # waits: the host's copy is written again
            buffers.edit(places[begin : begin + buffers.edits_max], pages[begin : begin + buffers.edits_max])
        buffers.send()
        self._sampling.send()
        self._compute(plan, samples)
        return self._sampling.bring()

    def _compute(self, plan: Plan, samples: int) -> None:
        """Starts the step that the buffers hold."""
        count = self.buffers.count
        is_decode = plan.tokens == plan.rows == samples
        if self.graphs is not None and is_decode and (key := self.graphs.key(plan.rows, count(TILES))):
            return self.graphs.replay(key)
        queries = 0 if is_decode and not self._config.deterministic else count(QUERIES)
        self._step(Shape(plan.tokens, plan.rows, samples, count(TILES), count(SAMPLE_TILES), queries))

    def _decode(self, key: Key) -> None:
        """Starts the step of a graph's bucket."""
        rows, tiles = key
        self._step(Shape(rows, rows, rows, tiles, tiles, rows if self._config.deterministic else 0))

    def _step(self, shape: Shape) -> None:
        self._edit_pages()
        inputs, samples = self.buffers.device, shape.samples
        if self.plans_max > 1:
            self._sampling.fill_in(inputs.token_id[: shape.tokens], inputs.token_line[: shape.tokens])
        logits = self.model.forward(shape)
        line, position = inputs.sample_line[:samples], inputs.sample_position[:samples]
        count = inputs.counts[SAMPLES : SAMPLES + 1]
        self._sampling.start(logits, line, position, count)
        if self.plans_max > 1:
            self._sampling.keep(samples, line, count)

    def _edit_pages(self) -> None:
        """Applies the buffers' edits of the page table. Those beyond the count go to a place that nobody reads."""
        edits = self.buffers.device.edits
        self._page_table.view(-1).index_copy_(0, edits[:, 0].long(), edits[:, 1])

    def _empty(self) -> None:
        """Makes the device's buffers hold a step without rows."""
        self.buffers.empty()
        self.buffers.send()

    def _logits_of(self, step: StepArrays) -> F32:
        """Logits f32 [samples, vocab] of other tokens of the step that was computed last."""
        with self._others.together():
            self._others.logits_of(step.sample_token)
            return self._on_host(self._start_logits(step))

    def _start_logits(self, step: StepArrays) -> Tensor:
        self.buffers.sample(step)
        self.buffers.send()
        shape = Shape(step.tokens, 0, len(step.sample_token), 0, self.buffers.count(SAMPLE_TILES), 0)
        return self.model.logits_of(shape)

    def use_idle(self) -> bool:
        """Captures a graph. Whether more are left."""
        if self.graphs is None or not self.graphs.pending:
            return False
        self._capture(0)
        return self.graphs.pending > 0

    def _capture(self, seconds: float) -> None:
        """Captures graphs for so long, on all ranks."""
        if self.graphs is not None and self._others.leads:
            with self._others.together():
                self.graphs.capture(seconds)

    def close(self) -> None:
        """Ends the threads that copy and compute masks, and other ranks."""
        self.sampler.close()
        self._others.close()
        self.page_ins.close()
        self._collective.close()
