"""`Engine`: the core and the worker stepped together, by hand or by the engine process.

engine = Engine("smollm2")
engine.load_adapter("devil", "path/to/devil")
request = engine.add("Define: lawyer", model="devil", max_tokens=20)
while engine.step():
    print(engine.plan_text())
print(request.text)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import structs

from lorad import _core
from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.combine.add_up import Part, add_up
from lorad.adapters.combine.weighted import Term
from lorad.config import EngineConfig, check
from lorad.engine import described, messages
from lorad.engine.adapters import EngineAdapters
from lorad.engine.asked import U32_MAX, check_sampling, request_number, token_ids
from lorad.engine.combined import Combined
from lorad.engine.costs import paged_in_at, read_costs
from lorad.engine.flights import Flights
from lorad.engine.grammars import Grammars
from lorad.engine.loader import Loader
from lorad.engine.loading import Opening
from lorad.engine.paged_in import PagedIn
from lorad.engine.prepared import PreparedAdapter, prepare
from lorad.engine.refusals import config_refusals, refusals
from lorad.engine.request import Request
from lorad.engine.trace_file import TraceFile
from lorad.errors import Unavailable
from lorad.models.open import open_model
from lorad.models.weights import Weights
from lorad.worker.choose import MakeWorker, make_worker
from lorad.worker.masks import Matcher
from lorad.worker.plan import Plan

if TYPE_CHECKING:
    from lorad.text.model import TextModel

log = logging.getLogger("lorad.engine")


class Engine:
    """One base model, its adapters and the requests on them. Not thread-safe, but for `prepare_adapter`."""

    def __init__(
        self,
        model: str = "smollm2",
        *,
        config: EngineConfig | None = None,
        on_open: Callable[[str], None] | None = None,
        on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
        on_page_in: Callable[[], None] = lambda: None,
        blocking: bool = True,
        loader: Loader | None = None,
        make_worker: MakeWorker = make_worker,
        weights: Weights | None = None,
        **options: Any,
    ) -> None:
        """Loads `model`; `options` are the fields of EngineConfig.

        `on_open` is called with the base's digest before its weights are read, `on_page_in` when a page-in has ended,
        on another thread.
        `loader`: reads adapters in a process of its own, and ends with this engine; None: they're read in this one.
        `make_worker`: another worker than the one that `device` means.
        `weights`: an open base, instead of the one that `model` names.
        `blocking`: whether `step` waits when only a page-in can bring work, or comes back with None.
        """
        self.config = config = check(config if config is not None else EngineConfig(model=model, **options))
        limits: dict[str, Any] = {"costs": read_costs(config.costs)} if config.costs else {}
        self.weights = open_model(config.model, on_progress) if weights is None else weights
        if on_open is not None:  # else a new file needn't be read for it
            on_open(self.weights.digest)
        self._trace = TraceFile(config.trace_file) if config.trace_file else None
        self._blocking = blocking
        self._loader = loader
        self._page_in_ended = threading.Event()

        def page_in_ended() -> None:
            self._page_in_ended.set()
            on_page_in()

        self.worker = make_worker(self.weights, config, on_progress=on_progress, on_page_in=page_in_ended)
        if config.page_in_bytes_per_s:
            costs = limits.get("costs") or _core.default_costs()
            limits["costs"] = paged_in_at(costs, config.page_in_bytes_per_s, self.worker.geometry.page_bytes)
        limits |= self.worker.core_config()
        with config_refusals():
            if self._trace is None:
                self.core = _core.Core(**limits)
            else:
                self.core = _core.Core.recorded(None, config.trace_bytes_max, **limits)
        self._flights = Flights(self.core, self.worker, self.now)
        self.adapters = EngineAdapters(self.core, self.worker, self.weights, config, self.now, loader)
        self._combined = Combined(self, config.max_combined_adapters)
        self._paged_in = PagedIn()
        self._sampling: dict[int, messages.Sampling] = {}
        self._handles: dict[int, Request] = {}
        self._next_request = 1
        self._closed = False
        self._text_model: TextModel | None = None
        self._grammars = Grammars(lambda: self.text_model.tokenizer, self.weights.config.vocab)
        self.steps = 0

    # adapters

    def check_adapter(self, name: str, path: str) -> CheckedAdapter:
        """Reads an adapter and holds it against the base."""
        self._check_open()
        return self.adapters.check(name, path)

    def prepare_adapter(self, name: str, path: str) -> PreparedAdapter:
        """Reads, checks and packs an adapter. Takes as long as the file; safe on any thread."""
        self._check_open()
        return self.adapters.prepare(name, path)

    def combination_parts(self, terms: Sequence[Term]) -> list[Part]:
        """The registered adapters of a combination. What becomes of them later doesn't matter: their pages are held."""
        self._check_open()
        return [Part(term, self.worker.image(self.adapters.number(term.generation))) for term in terms]

    def prepare_combination(self, parts: Sequence[Part]) -> PreparedAdapter:
        """The sum of some adapters, as an adapter of its own. Takes as long as a load; safe on any thread."""
        checked = add_up(parts, self.weights.config, max_lora_rank=self.config.max_lora_rank)
        return prepare(checked, "", self.worker.geometry.page_bytes)

    def register_adapter(self, prepared: PreparedAdapter) -> messages.AdapterInfo:
        """Makes a prepared adapter servable by its generation. Each registration wants a `release_adapter`."""
        self._check_open()
        return self.adapters.register(prepared)

    def release_adapter(self, generation: str, *, pinned: bool = False) -> int | None:
        """Undoes one registration (`pinned`: and its pin). A number: of an adapter that drains, and is among `gone`
        when it's forgotten. None: others hold it."""
        if pinned:
            self.pin_adapter(generation, False)
        return self.adapters.release(generation)

    def gone(self) -> list[int]:
        """Numbers of adapters that were forgotten since the last call."""
        return self.adapters.gone()

    def pin_adapter(self, generation: str, pinned: bool) -> None:
        """Keeps a generation in pages, for one of its registrations; it's unpinned when the last one gives that up."""
        self._check_open()
        self.adapters.pin(generation, pinned)

    def prewarm_adapter(self, generation: str) -> None:
        """Pages a generation in as soon as there is room that nobody uses."""
        self._check_open()
        self.adapters.prewarm(generation)

    def load_adapter(self, name: str, path: str) -> messages.AdapterInfo:
        """Reads, checks and registers an adapter folder under `name`, which means it from now on; requests on what it
        meant before go on."""
        self._check_open()
        info = self.adapters.load(name, path)
        self._combined.changed(name, info.generation)
        return info

    def unload_adapter(self, name: str) -> None:
        """Takes the name away; requests that run end on what it meant."""
        self.adapters.unload(name)
        self._combined.changed(name, None)

    def set_tenant(
        self, tenant: int, *, weight: int = 100, running_max: int = 0, waiting_max: int = 0, pages_max: int = 0
    ) -> None:
        """Gives a tenant its share (1 to 1000 beside the others'), and limits of the sequences that it may run and let
        wait and of the pages that it may hold; 0: none."""
        self._check_open()
        limits = {"running_max": running_max, "waiting_max": waiting_max, "pages_max": pages_max}
        given = {name: request_number(value, name, U32_MAX) for name, value in limits.items() if value != 0}
        with refusals():
            self.core.set_tenant(
                request_number(tenant, "tenant", U32_MAX), weight=request_number(weight, "weight", U32_MAX), **given
            )

    # requests

    def follow(self, grammar: str, *, tenant: int = 0) -> Matcher:
        """What `submit` wants for a request with this grammar. Takes as long as it compiles, unless the tenant has used
        it lately; safe on any thread."""
        return self._grammars.matcher(grammar, tenant)

    def submit(self, request: messages.Generate, matcher: Matcher | None = None) -> None:
        """Queues a request; a refusal names what is wrong and changes nothing. `matcher`: of its grammar, if that was
        compiled before."""
        self._check_open()
        adapter = self.adapters.number(request.generation) if request.generation else None
        vocab = self.weights.config.vocab
        sampling = check_sampling(request.sampling, vocab)
        prompt = token_ids(request.prompt, vocab)
        if sampling.grammar:
            matcher = matcher or self.follow(sampling.grammar, tenant=request.tenant)
            # Where the grammar ends the answer ends, whatever else ends it.
            ends = dict.fromkeys((*self.text_model.tokenizer.end_ids, *sampling.stop_token_ids))
            sampling = structs.replace(sampling, stop_token_ids=tuple(ends))
        with self._traced(), refusals():
            self.core.add(
                self.now(),
                request_number(request.id),
                adapter,
                prompt,
                sampling.max_tokens,
                list(sampling.stop_token_ids),
                tenant=request_number(request.tenant, "tenant", U32_MAX),
                after=None if request.after is None else request_number(request.after, "after"),
                fresh=sampling.prompt_logprobs >= 0,
            )
        self._sampling[request.id] = sampling
        self.worker.sampler.expect(request.id, sampling, prompt, matcher)

    def add(
        self,
        prompt: str | Sequence[int],
        model: str = "",
        *,
        adapters: Mapping[str, float] | None = None,
        max_tokens: int = 64,
        **sampling: Any,
    ) -> Request:
        """Queues `prompt` (text of a user's message, or token ids) under the adapter named `model` ("": the base).

        `adapters`: weights of several adapters by name, of which the sum is served: an experiment, off unless
        `max_combined_adapters` is given. The first request of a combination takes as long as a load.
        `sampling`: fields of `messages.Sampling`; greedy unless a temperature is given. Ends at an end-of-text token
        unless `stop_token_ids` says otherwise, and where its `grammar` ends.
        """
        self._check_open()
        template = ""
        if adapters is not None:
            generation = self._combined.generation(adapters, model)
        elif model == "":
            generation = ""
        else:
            info = self.adapters.named(model)
            generation, template = info.generation, info.chat_template
        if isinstance(prompt, str):
            ids = self.text_model.chat([{"role": "user", "content": prompt}], template=template)
        else:
            ids = token_ids(prompt, self.weights.config.vocab).tolist()
        sampling.setdefault("temperature", 0.0)
        sampling.setdefault("stop_token_ids", tuple(self.weights.config.eos_ids))
        request = Request(self._next_request, model, ids, self, dict(adapters or {}))
        self._next_request += 1
        self.submit(
            messages.Generate(
                request.id,
                ids,
                messages.Sampling(max_tokens=max_tokens, **sampling),
                generation,
            )
        )
        self._handles[request.id] = request
        return request

    def abort(self, request: int) -> None:
        """Ends a request wherever it is; unknown and ended ones are fine."""
        self.core.abort(self.now(), request_number(request))

    # stepping

    def has_work(self) -> bool:
        """Whether any request waits or runs, or a page-in is under way or wished for. A wish may wait for room that
        nobody uses: then `step` gives None."""
        live = bool(self._sampling) or len(self._flights) > 0
        return live or self.worker.page_ins.pending > 0 or self.core.wishes() > 0

    def use_idle(self) -> bool:
        """Has the worker do a little of what can wait, as capturing graphs. Whether more is left."""
        return self.worker.use_idle()

    def step(self) -> messages.Step | None:
        """Plans, computes and commits one step; where the worker can, the next one is begun before. None: nothing can
        run (see `blocking`)."""
        self._check_open()
        with self._traced():
            return self._step()

    @contextmanager
    def _traced(self) -> Iterator[None]:
        """Writes what was recorded, above all when the core itself fails: the call it failed in is the last line."""
        try:
            yield
        finally:
            if self._trace is not None:
                self._trace.write(self.core.take_trace())

    def _step(self) -> messages.Step | None:
        while self.has_work():
            self._page_in_ended.clear()
            self._take_page_ins()
            while self._flights.start(self._sampling):
                pass
            if self._flights:
                return self._commit()
            made = self._events({})
            if made.tokens or made.finished:
                return made
            if self.worker.page_ins.pending == 0 or not self._blocking:
                return None
            self._page_in_ended.wait()
        made = self._events({})
        return made if made.finished else None

    def _commit(self) -> messages.Step:
        rows = self._flights.rows
        logprobs = self._flights.finish()
        self.steps += rows > 0
        return self._events(logprobs)

    def _take_page_ins(self) -> None:
        for done in self.worker.finished_page_ins():
            size = 0 if done.error is not None else done.pages.size * self.worker.geometry.page_bytes
            self._paged_in.note(done.adapter, asked=int(done.asked * 1e6), ended=self.now(), size=size)
            if done.error is None:
                self.core.page_in_done(self.now(), done.adapter)
            else:
                self.core.page_in_failed(self.now(), done.adapter)

    def _events(self, logprobs: dict[int, messages.TokenLogprobs]) -> messages.Step:
        tokens: list[messages.Token] = []
        finished: list[messages.Finished] = []
        for kind, subject, value in self.core.drain_events():
            if kind == "token":
                tokens.append(messages.Token(subject, int(value), logprobs.get(subject)))
            elif kind == "finished":
                finished.append(self._end(subject, str(value), tokens))
            elif kind == "adapter_gone":
                self.adapters.forget(subject)
                self._paged_in.forget(subject)
        made = messages.Step(tokens, finished)
        if self._handles:
            for request in {*(token.id for token in tokens), *(end.id for end in finished)} & self._handles.keys():
                self._handles[request].take(made)
            for end in finished:
                self._handles.pop(end.id, None)
        return made

    def _end(self, request: int, reason: str, tokens: list[messages.Token]) -> messages.Finished:
        self._sampling.pop(request, None)
        grammar_error = self.worker.sampler.forget(request)
        scores, stop_token = self.worker.sampler.prompt_scores.take(request), None
        if reason == "stop":
            # The core tells of the stop token too; it isn't part of the answer.
            for index in range(len(tokens) - 1, -1, -1):
                if tokens[index].id == request:
                    stop_token = tokens.pop(index)
                    break
        error = None
        if reason == "failed_row" and grammar_error:
            why = f"the answer could not follow its grammar any further: {grammar_error[:300]}"
            error = messages.Failure("InvalidRequest", "failed_grammar", why)  # the engine is well: it's the grammar
        elif reason not in ("stop", "length", "aborted"):
            error = messages.Failure("EngineFailure", reason, FAILURES.get(reason, "the request failed"))
        told = self.core.explain(request)
        return messages.Finished(
            request,
            "error" if error is not None else "abort" if reason == "aborted" else reason,
            error,
            cached_tokens=told["cached_tokens"] if told else 0,
            prompt_logprobs=scores,
            waits=self._paged_in.waits(told) if told else None,
            stop_token=stop_token,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the engine is closed", code="engine_closed")
        if self.worker.lost is not None:
            raise self.worker.lost

    # looking

    @staticmethod
    def now() -> int:
        """The core's time: microseconds on a clock that never goes back."""
        return time.monotonic_ns() // 1000

    @property
    def text_model(self) -> TextModel:
        """The base model's tokenizer and chat template, read at the first use."""
        from lorad.text.model import load_text_model  # token ids need no tokenizer's library

        if self._text_model is None:
            self._text_model = load_text_model(self.weights.path)
        return self._text_model

    @property
    def model_info(self) -> messages.ModelInfo:
        """The base model, as a front needs to know it."""
        return described.model_info(self.weights, self.worker)

    def stats(self) -> messages.Stats:
        """Counters at this moment."""
        return described.stats(self.core.stats(), self.worker, self.adapters, self.steps)

    def explain(self, request: int) -> dict[str, Any] | None:
        """Why a request that lives, or one of the last 1024 that ended, took so long; times in µs of `now`."""
        return self.core.explain(request_number(request))

    @property
    def plan(self) -> Plan:
        """The plan that was made last."""
        return self._flights.plan

    def plan_text(self) -> str:
        """The last plan, a line for each row."""
        return self.core.plan_text(self.plan.array)

    def dump(self) -> str:
        """The core's whole state as text: requests, adapters, pages."""
        return self.core.dump()

    def close(self) -> None:
        """Ends the worker's threads. Whatever would need them is refused afterwards; what is there can be looked at."""
        self._closed = True
        if self._trace is not None:
            self._trace.write(self.core.take_trace())
            self._trace.close()
        if self._loader is not None:
            self._loader.close()
        self.worker.close()


FAILURES = {
    "failed_page_in": "the adapter's weights could not be copied into the page pool",
    "failed_row": "the worker could not compute this request",
    "failed_plan": "the worker failed in the step that held this request",
    "failed_fetch": "the adapter's weights could not be brought to this host",
    "failed_deadline": "the request's deadline came before its last token",
}
"""What the core's reasons mean to a client."""


def process_engine(
    config: EngineConfig,
    on_open: Callable[[str], None],
    on_progress: Callable[[str, int, int], None],
    on_page_in: Callable[[], None],
    *,
    will_load: bool,
    make_worker: MakeWorker = make_worker,
) -> Engine:
    """The engine of an engine process, whose loop has messages to read while a page-in is under way."""
    # Before the model is opened: its imports take seconds, beside which the weights are read.
    loader = Loader(Opening(config.model, config.max_lora_rank, config.tensor_parallel_size)) if will_load else None
    return Engine(
        config=config,
        on_open=on_open,
        on_progress=on_progress,
        on_page_in=on_page_in,
        blocking=False,
        loader=loader,
        make_worker=make_worker,
    )
