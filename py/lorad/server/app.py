"""The routes: what each request goes through, from its bytes to its answer.

bytes → struct → checked `Ask` → name to generation → (thread) template, ids → context check → engine → text → bytes
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from aiohttp import web

from lorad.adapters.combine.weighted import check_model, check_on
from lorad.config import ServerConfig
from lorad.control.routes import ControlRoutes
from lorad.engine.handle import EngineHandle
from lorad.errors import LoradError, Unavailable
from lorad.observe.listener import Scrapes
from lorad.observe.logs import fault
from lorad.observe.metrics import Metrics
from lorad.observe.metrics import Used as TenantUse
from lorad.observe.observer import Observer
from lorad.observe.record import RECORD, note
from lorad.observe.tracing import Tracing
from lorad.page.files import add_page
from lorad.page.overview import Overview, Sources
from lorad.server.auth import TENANT, key_check
from lorad.server.body import read_body
from lorad.server.combinations import Combinations
from lorad.server.conversation import rendering_of
from lorad.server.decode import decode
from lorad.server.explained import explained
from lorad.server.failures import INTERNAL, error_event, errors_as_json, json_response, log, passing
from lorad.server.fields import unsupported
from lorad.server.formats import DONE, ChatFormat, CompletionFormat, Format, Head
from lorad.server.gate import Gate
from lorad.server.generation import Generation
from lorad.server.in_flight import InFlight
from lorad.server.inventories import Inventories
from lorad.server.inventories import Sources as InventorySources
from lorad.server.lengths import Lengths
from lorad.server.names import Names
from lorad.server.openapi import Document
from lorad.server.pace import Pace, Sample
from lorad.server.path import path_check
from lorad.server.registry import Registry, Target, unknown_model
from lorad.server.requests import Ask, ChatRequest, CompletionRequest, Prompt, ask_chat, ask_completion
from lorad.server.runner import sign
from lorad.server.shortage import Shortage
from lorad.server.tokens import TokenRoutes
from lorad.server.writing import write
from lorad.tenants.file import Used
from lorad.tenants.ledger import Ledger
from lorad.tenants.limits import TenantLimits
from lorad.tenants.routes import TenantRoutes
from lorad.tenants.serving import Tenancy
from lorad.tenants.tenant import Tenant
from lorad.text.model import TextModel

_CHAT_DEFAULTS = unsupported("chat")
_COMPLETION_DEFAULTS = unsupported("completion")


class _Prompts(NamedTuple):
    """A request's prompts as ids."""

    field: str
    """The field that they came in, for messages."""
    ids: list[list[int]]
    began: float
    """When the request arrived, on the loop's clock."""


class Front:
    """The state behind the routes."""

    def __init__(
        self,
        handle: EngineHandle,
        text: TextModel,
        registry: Registry,
        config: ServerConfig,
        *,
        in_flight_max: int = 4096 + 64,
        step_adapters_max: int = 64,
        rows_max: int = 64,
        ledger: Ledger | None = None,
        combined_max: int = 0,
        tracing: Tracing | None = None,
        now: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """`combined_max`: combinations of adapters at once; 0: they are off."""
        self.handle = handle
        self.text = text
        self.registry = registry
        self.config = config
        self.gate = Gate(in_flight_max)
        self.shortage = Shortage(self.gate, config.memory_low_bytes, rows_max)
        self.limits = TenantLimits(in_flight_max, now=time.monotonic)
        self.ledger = ledger
        self.metrics = Metrics(
            registry,
            self.gate,
            handle.model,
            lambda: len(self.combinations),
            labels_max=config.metrics_labels_max,
            step_adapters_max=step_adapters_max,
        )
        self.observer = Observer(self.metrics, log_requests=config.log_requests, tracing=tracing)
        self.scrapes = Scrapes(self.metrics, handle)
        registry.on_changed(lambda change: log.info("adapter %r was %s", change.name, change.kind))
        self.in_flight = InFlight()
        self.pace = Pace(self.in_flight)
        self.inventories: Inventories | None = None
        """None: control endpoints are off."""
        self._combined_max = combined_max
        self.names = Names(registry, self.gate)
        self.combinations = Combinations(handle, self.names, registry, self.in_flight, combined_max)
        self.lengths = Lengths(handle, text.tokenizer)
        self.tokens = TokenRoutes(
            self.names, registry, text, self.gate, self.limits, handle.model.vocab_size, self._in_thread
        )
        self._now = now
        self._new_id = new_id
        self._request_ids = itertools.count(1)
        # Two threads, so that one long prompt doesn't hold back all others; the library lets go of the interpreter.
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="lorad-text")

    # stopping

    def drain(self) -> None:
        """From now on new requests are refused; running ones go on."""
        self.gate.drain()

    def cut(self) -> None:
        """Ends what still runs with an error that its clients see."""
        error = Unavailable("the server stopped before the answer was complete", code="draining")
        for generation in self.in_flight:
            generation.fail(error)

    async def close(self) -> None:
        """Lets the threads go."""
        await self.combinations.close()
        self.observer.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # routes

    async def health(self, request: web.Request) -> web.Response:
        """200 if tokens can be made; degraded: something else can't."""
        if self.gate.draining:
            return json_response({"status": "draining"}, status=503, headers=passing("draining"))
        fault = self.handle.fault
        if fault is not None:
            return json_response({"status": fault.code}, status=503, headers=passing(fault.code))
        if self.shortage.is_short:
            return json_response({"status": "degraded", "reasons": ["memory_low"]})
        return json_response({"status": "ready"})

    async def live(self, request: web.Request) -> web.Response:
        """200 as long as this process answers: an engine that died is started again by it."""
        return json_response({"status": "live"})

    async def version(self, request: web.Request) -> web.Response:
        """The package's version."""
        return json_response({"version": _version()})

    async def models(self, request: web.Request) -> web.Response:
        """The base and all adapters."""
        return json_response({"object": "list", "data": self.registry.listing(request[TENANT])})

    async def model(self, request: web.Request) -> web.Response:
        """One model."""
        name = request.match_info["name"]
        if not self.registry.may_use(request[TENANT], name):
            raise unknown_model(name)
        return json_response(self.registry.card(name))

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        began = asyncio.get_running_loop().time()
        body = decode(await read_body(request), ChatRequest, _CHAT_DEFAULTS)
        ask, messages = ask_chat(body, self.handle.model.vocab_size, self.text.tokenizer.end_ids)
        rendering = rendering_of(body)
        tenant = request[TENANT]
        ask, target = await self._target(tenant, ask)
        with self.gate.passing(ask.n), self.limits.passing(tenant, _adapters(ask, target), ask.n):
            self._check_engine()
            tools = None if ask.calling is None else ask.calling.told
            ask = await self._with_grammar(ask)
            ids, template = [], None
            # The name may be pointed elsewhere while the conversation is rendered, to an adapter with another template.
            while template != target.template:
                template = target.template
                # What is measured is the text as it was rendered: tools and calls are in it, too.
                check = partial(self.lengths.check_characters, target, "messages")
                render = partial(self.text.chat, messages, tools, template=template, rendering=rendering, check=check)
                ids = await self._in_thread(render)
                target = self.names.now(tenant, ask.model)
            return await self._answer(request, ask, _Prompts("messages", [ids], began), ChatFormat)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        began = asyncio.get_running_loop().time()
        body = decode(await read_body(request), CompletionRequest, _COMPLETION_DEFAULTS)
        ask, prompts = ask_completion(body, self.handle.model.vocab_size, self.text.tokenizer.end_ids)
        tenant, count = request[TENANT], ask.n * len(prompts)
        ask, target = await self._target(tenant, ask)
        with self.gate.passing(count), self.limits.passing(tenant, _adapters(ask, target), count):
            self._check_engine()
            # Each has its own turn on a thread, which others wait for, and the first that doesn't fit is the last.
            ids = [await self._encoded(target, ask, prompt) for prompt in prompts]
            ask = await self._with_grammar(ask)
            return await self._answer(request, ask, _Prompts("prompt", ids, began), CompletionFormat)

    # steps

    async def _target(self, tenant: Tenant, ask: Ask) -> tuple[Ask, Target]:
        """The request under the name that it means, and what the prompt is held against before it's read: of a
        combination, which isn't made yet, the base."""
        if ask.adapters:
            check_on(self._combined_max)
        name = await self.names.meant(tenant, ask.model)
        target = self.names.now(tenant, name)
        if ask.adapters:
            check_model(ask.model, is_base=not target.generation, base=self.registry.base_name)
            await self.combinations.check(tenant, ask.adapters)
        return (ask if name == ask.model else dataclasses.replace(ask, model=name)), target

    async def _encoded(self, target: Target, ask: Ask, prompt: Prompt) -> list[int]:
        """A prompt's ids, which fit."""
        if isinstance(prompt, str):
            self.lengths.check_characters(target, "prompt", len(prompt))
            ids: list[int] = await self._in_thread(partial(self.text.encode, prompt))
        else:
            ids = prompt
        self.lengths.fit(target, "prompt", ids, ask)
        return ids

    def _book(self, tenant: Tenant, generation: Generation, seconds: float, sample: Sample | None) -> None:
        """Writes down what a request has cost its tenant, and how long it took (`sample`: if anybody wants to know)."""
        if sample is not None:
            self.pace.settled(generation, sample)
        usage, name = generation.usage, generation.target.name
        if tenant.name:
            self.metrics.used(TenantUse(tenant.name, usage.prompt, usage.cached, usage.completion))
        if self.ledger is not None:
            loads = [choice.waits for choice in generation.choices if choice.waits and choice.waits.load_bytes]
            load_bytes, load_seconds = sum(one.load_bytes for one in loads), sum(one.load_s for one in loads)
            tokens = usage.prompt, usage.cached, usage.completion
            self.ledger.add(tenant.name, name, Used(1, *tokens, seconds, len(loads), load_bytes, load_seconds))

    def _check_engine(self) -> None:
        fault = self.handle.fault
        if fault is not None:
            raise fault

    async def _with_grammar(self, ask: Ask) -> Ask:
        form = ask.form
        return ask if form is None else dataclasses.replace(ask, grammar=await self._in_thread(form.grammar))

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _answer(
        self, request: web.Request, ask: Ask, prompts: _Prompts, kind: type[Format]
    ) -> web.StreamResponse:
        # The name means what it means now; it may have been pointed elsewhere while the prompt was read.
        tenant = request[TENANT]
        target = self.names.now(tenant, ask.model)
        if ask.adapters:
            target = await self.combinations.bring(tenant, target, ask.adapters)
        fitted = [(ids, self.lengths.fit(target, prompts.field, ids, ask)) for ids in prompts.ids]
        head = Head(kind.id_prefix + self._new_id(), int(self._now()), target.name, target.fingerprint)
        form = kind(head, self.text.tokenizer, logprobs=ask.logprobs, include_usage=ask.include_usage)
        generation = Generation(
            handle=self.handle,
            tokenizer=self.text.tokenizer,
            metrics=self.metrics,
            ask=ask,
            target=target,
            field=prompts.field,
            began=prompts.began,
            tenant=tenant.number,
        )
        request[RECORD].generation, request[RECORD].response_id = generation, head.id
        sample: Sample | None = None
        if self.inventories is not None and self.inventories.watched:
            sample = self.pace.sample(request.content_length or 0)
        self.in_flight.add(generation)
        for name in target.adapters:
            self.registry.use(name)
        read, answered = sum(map(len, prompts.ids)), True
        self.limits.spend(tenant, read)
        try:
            generation.start(fitted, [next(self._request_ids) for _ in range(ask.n * len(fitted))])
            if self.inventories is not None:
                self.inventories.arrived(request)
            if ask.stream:
                return await self._stream(request, generation, form)
            await generation.finish()
            told = explained(generation) if ask.explain else None
            body = form.whole(generation.choices, generation.usage, told)
            return web.Response(body=body, content_type="application/json")
        except LoradError:
            answered = False
            raise
        finally:
            # A client that left, an error, or simply the end: nothing of this request stays in the engine.
            generation.close()
            self.in_flight.discard(generation)
            made = generation.usage.completion
            # What the engine refused has cost nothing; what an error took away isn't paid for.
            self.limits.spend(tenant, made if answered or made else -read)
            if answered:
                seconds = asyncio.get_running_loop().time() - generation.began
                generation.when_settled(partial(self._book, tenant, generation, seconds, sample))

    async def _stream(self, request: web.Request, generation: Generation, form: Format) -> web.StreamResponse:
        # Until the first news nothing is sent, so that a refusal by the engine still has its own status.
        news = await generation.pieces()
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        data = form.opening(len(generation.choices))
        while news:
            await write(request, response, data + form.pieces(news))
            data = b""
            try:
                news = await generation.pieces()
            except LoradError as error:
                note(request, error.code)
                await write(request, response, error_event(error) + DONE)
                return response
            except Exception as error:
                fault(log, f"{request.path} failed in mid-stream", error)
                note(request, INTERNAL.code)
                await write(request, response, error_event(INTERNAL) + DONE)
                return response
        told = explained(generation) if generation.ask.explain else None
        await write(request, response, form.closing(generation.usage, told))
        return response


def _adapters(ask: Ask, target: Target) -> tuple[str, ...]:
    """The names that count against a limit of adapters: none of the base."""
    if ask.adapters:
        return tuple(wanted.name for wanted in ask.adapters)
    return (target.name,) if target.generation else ()


def make_app(front: Front, control: ControlRoutes | None = None, tenancy: Tenancy | None = None) -> web.Application:
    """The aiohttp application, for `Runner`.

    Without `control` its routes are refused; with `tenancy` keys are its tenants'.
    """
    directory = None if tenancy is None else tenancy.directory
    keys = key_check(front.config.api_key, front.config.control_key, directory)
    app = web.Application(
        client_max_size=front.config.body_bytes_max,
        middlewares=[front.observer.middleware(), errors_as_json, keys, path_check],  # type: ignore[list-item]
    )
    if control is not None:
        control.add_to(app)
        sources = Sources(
            front.handle,
            control.manager,
            front.gate,
            front.in_flight,
            front.metrics.recent,
            front.combinations,
            tenancy,
        )
        Overview(sources).add_to(app)
        front.inventories = Inventories(InventorySources(front.handle, control.manager, front.gate, front.pace))
        front.inventories.add_to(app)
    if tenancy is not None:
        TenantRoutes(tenancy).add_to(app)
        front.metrics.tenants = tenancy.directory.names
    add_page(app)
    app.router.add_get("/health", front.health)
    app.router.add_get("/health/live", front.live)
    app.router.add_get("/version", front.version)
    app.router.add_get("/metrics", front.scrapes.answer)
    app.router.add_get("/v1/models", front.models)
    app.router.add_get("/v1/models/{name:.+}", front.model)
    app.router.add_post("/v1/chat/completions", front.chat_completions)
    app.router.add_post("/v1/completions", front.completions)
    front.tokens.add_to(app)
    Document(_version()).add_to(app)
    app.on_response_prepare.append(front.observer.sign)
    app.on_response_prepare.append(sign)
    return app


def _version() -> str:
    try:
        return version("lorad")
    except PackageNotFoundError:
        return "unknown"
