"""The engine process: one loop that takes messages, steps the engine and sends what each step made.

Four threads: the loop owns the engine and is the only one that writes to the socket; a reader fills a bounded inbox;
one waits for the loader process (`loader.py`), and adds up combinations; one compiles grammars. The process ends when
the front says so or when the front is gone, and by no signal but SIGKILL: a service manager that signals the whole
group must not cut what the front is draining.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import msgspec

from lorad import open_files
from lorad.adapters.combine.weighted import Term, spelt
from lorad.config import EngineConfig
from lorad.engine.frames import FrameBuffer, failure_of, pack, to_engine
from lorad.engine.messages import (
    Abort,
    AdapterInfo,
    AdapterLoaded,
    CallDone,
    CallFailed,
    CombineAdapters,
    Fatal,
    Finished,
    Generate,
    GetStats,
    LoadAdapter,
    ModelInfo,
    Opened,
    PinAdapter,
    PrewarmAdapter,
    Progress,
    Ready,
    ReleaseAdapter,
    SetTenant,
    Shutdown,
    Start,
    Stats,
    Step,
    ToEngine,
    ToFront,
)
from lorad.errors import EngineFailure, InvalidRequest, LoradError
from lorad.observe.logs import configure

log = logging.getLogger("lorad.engine")

INBOX_MAX = 16384
"""Messages read and not yet taken. A full inbox stops the reader, and the socket then holds the front back."""

SWITCH_SECONDS = 5e-4
"""How long other threads' Python may keep the loop waiting, at each of a step's calls (some 250); Python's is 5 ms."""

LOAD_NICE = 10

IDLE_SECONDS = 0.02
"""How soon to step again, at the latest, when the engine has work and none of it can run yet. A page-in that ends wakes
the loop before that."""


class Steppable(Protocol):
    """What the loop needs of an engine. Refusals are raised as `LoradError`."""

    @property
    def model_info(self) -> ModelInfo: ...
    def follow(self, grammar: str, *, tenant: int = 0) -> Any:
        """Compiles a grammar; runs in another thread than all the rest."""

    def submit(self, request: Generate, matcher: Any = None) -> None:
        """`matcher`: what `follow` gave for the request's grammar, if it has one."""

    def abort(self, request_id: int) -> None: ...
    def prepare_adapter(self, name: str, path: str) -> Any:
        """Reads and checks a folder; runs in another thread than all the rest."""

    def combination_parts(self, terms: Sequence[Term]) -> Any:
        """Takes hold of what `prepare_combination` needs, so that it may be released meanwhile."""

    def prepare_combination(self, parts: Any) -> Any:
        """As `prepare_adapter`, from adapters that are here."""

    def register_adapter(self, prepared: Any) -> AdapterInfo: ...
    def release_adapter(self, generation: str, *, pinned: bool = False) -> int | None: ...
    def gone(self) -> list[int]: ...
    def pin_adapter(self, generation: str, pinned: bool) -> None: ...
    def prewarm_adapter(self, generation: str) -> None: ...
    def set_tenant(self, tenant: int, *, weight: int, running_max: int, waiting_max: int, pages_max: int) -> None: ...
    def step(self) -> Step | None: ...
    def has_work(self) -> bool: ...
    def use_idle(self) -> bool:
        """Does a little of what can wait until nobody else does. Whether more is left."""

    def stats(self) -> Stats: ...


class Prepared(NamedTuple):
    """The loader's answer: what it prepared, or why not."""

    call: int
    result: Any
    error: LoradError | None


class Compiled(NamedTuple):
    """The grammar of requests that are queued together, as many matchers of it, or why not."""

    requests: list[Generate]
    matchers: list[Any]
    error: LoradError | None


Item = ToEngine | Prepared | Compiled
"""What the loop takes from its inbox."""


class Inbox:
    """A bounded queue between the reader, the loader, the compiler and the loop."""

    def __init__(self, limit: int = INBOX_MAX) -> None:
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._limit = limit
        self._woken = False

    def put(self, item: Item) -> None:
        """Adds an item; waits while the queue is full."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._limit)
            self._items.append(item)
            self._changed.notify_all()

    def wake(self) -> None:
        """Lets a waiting `take` return, with nothing if need be."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def take(self, timeout: float | None) -> list[Item]:
        """All items there are; waits up to `timeout` (None: for ever) while there are none."""
        if not self._items and timeout == 0.0:
            return []
        with self._changed:
            if not self._items and not self._woken:
                self._changed.wait(timeout)
            self._woken = False
            items = list(self._items)
            self._items.clear()
            self._changed.notify_all()
            return items


class Loop:
    """Joins an engine, an inbox and a socket."""

    def __init__(self, engine: Steppable, inbox: Inbox, send: Callable[[ToFront], None]) -> None:
        self._engine = engine
        self._inbox = inbox
        self._send = send
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="lorad-load", initializer=_give_way)
        # One thread: the answers to one prompt are queued in order, and one long grammar takes one core.
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="lorad-grammar", initializer=_give_way)
        self._together: list[Generate] = []
        """Those of one client's request that have come, while others of it follow."""
        self._compiling: dict[int, str] = {}
        """Requests whose grammars aren't there yet and that nobody has ended, with their generations."""
        self._held_back: list[tuple[ReleaseAdapter, set[int]]] = []
        """Releases that came after requests for the same generation which still wait for their grammars: these."""
        self._running = True
        self._draining: dict[int, int] = {}
        """The call that each adapter that drains is the answer to, by the adapter's number."""

    def run(self) -> None:
        """Runs until the front sends Shutdown."""
        engine, inbox, send = self._engine, self._inbox, self._send
        idle: float | None = None
        while self._running:
            for item in inbox.take(idle):
                self._handle(item)
            if not self._running:
                break
            step = engine.step()
            if self._draining:
                self._answer_drained()
            if step is not None and (step.tokens or step.finished):
                send(step)
            if step is not None:
                idle = 0.0
            elif engine.has_work():
                idle = IDLE_SECONDS
            else:
                idle = 0.0 if engine.use_idle() else None

    def _handle(self, item: Item) -> None:
        match item:
            case Generate():
                self._together.append(item)
                if not item.more:
                    together, self._together = self._together, []
                    self._generate(together)
            case Compiled(requests, matchers, error):
                for request, matcher in zip(requests, matchers, strict=True):
                    if request.id in self._compiling:
                        self._submit(request, matcher, error)
                        self._compiled(request.id)
            case Abort(request_id) if request_id in self._compiling:
                self._send(Step(tokens=[], finished=[Finished(request_id, "abort")]))
                self._compiled(request_id)
            case Abort(request_id):
                self._engine.abort(request_id)
            case LoadAdapter(call, name, path):
                self._loader.submit(self._prepare, call, name, lambda: self._engine.prepare_adapter(name, path))
            case CombineAdapters(call, terms):
                self._combine(call, terms)
            case Prepared(call, result, error):
                self._register(call, result, error)
            case ReleaseAdapter(call, generation, pinned):
                # A request that was sent before is queued before, though its grammar takes a while.
                before = {request for request, its in self._compiling.items() if its == generation}
                if before:
                    self._held_back.append((item, before))
                else:
                    self._release(call, generation, pinned)
            case PinAdapter(call, generation, pinned):
                self._do(call, lambda: self._engine.pin_adapter(generation, pinned))
            case PrewarmAdapter(call, generation):
                self._do(call, lambda: self._engine.prewarm_adapter(generation))
            case SetTenant(call, tenant, weight, running, waiting, pages):
                self._do(
                    call,
                    lambda: self._engine.set_tenant(
                        tenant, weight=weight, running_max=running, waiting_max=waiting, pages_max=pages
                    ),
                )
            case GetStats(call):
                self._answer(call, lambda: msgspec.structs.replace(self._engine.stats(), call=call))
            case Shutdown():
                self._running = False
                for pool in (self._loader, self._compiler):
                    pool.shutdown(wait=False, cancel_futures=True)
            case Start():
                pass

    def _generate(self, requests: list[Generate]) -> None:
        """Those of one client's request, which have one grammar or none."""
        if not requests[0].sampling.grammar:
            for request in requests:
                self._submit(request, None)
            return
        for request in requests:
            self._compiling[request.id] = request.generation
        self._compiler.submit(self._compile, requests)

    def _submit(self, request: Generate, matcher: Any, error: LoradError | None = None) -> None:
        try:
            if error is not None:
                raise error
            self._engine.submit(request, matcher)
        except LoradError as refusal:
            self._send(Step(tokens=[], finished=[Finished(request.id, "error", failure_of(refusal))]))

    def _compiled(self, request: int) -> None:
        """The request doesn't wait for its grammar any more."""
        del self._compiling[request]
        held_back, self._held_back = self._held_back, []
        for release, before in held_back:
            before.discard(request)
            if before:
                self._held_back.append((release, before))
            else:
                self._release(release.call, release.generation, release.pinned)

    def _compile(self, requests: list[Generate]) -> None:
        grammar, tenant, none = requests[0].sampling.grammar, requests[0].tenant, [None] * len(requests)
        try:
            compiled = Compiled(requests, [self._engine.follow(grammar, tenant=tenant) for _ in requests], None)
        except LoradError as error:
            compiled = Compiled(requests, none, error)
        except Exception:
            # Whatever a grammar provokes is its request's failure, never the engine's.
            log.exception("a grammar of request %d failed", requests[0].id)
            compiled = Compiled(requests, none, InvalidRequest("the grammar could not be read", code="failed_grammar"))
        self._inbox.put(compiled)

    def _combine(self, call: int, terms: list[Term]) -> None:
        try:
            parts = self._engine.combination_parts(terms)
        except LoradError as error:
            self._send(CallFailed(call, failure_of(error)))
            return
        self._loader.submit(self._prepare, call, spelt(terms), lambda: self._engine.prepare_combination(parts))

    def _prepare(self, call: int, name: str, work: Callable[[], Any]) -> None:
        try:
            prepared = Prepared(call, work(), None)
        except LoradError as error:
            prepared = Prepared(call, None, error)
        except Exception:
            # Whatever an adapter folder provokes is that folder's failure, never the engine's.
            log.exception("loading adapter %r failed", name)
            prepared = Prepared(call, None, EngineFailure("the adapter could not be read", code="adapter_load"))
        self._inbox.put(prepared)

    def _register(self, call: int, prepared: Any, error: LoradError | None) -> None:
        if error is not None:
            self._send(CallFailed(call, failure_of(error)))
        else:
            self._answer(call, lambda: AdapterLoaded(call, self._engine.register_adapter(prepared)))

    def _release(self, call: int, generation: str, pinned: bool) -> None:
        try:
            adapter = self._engine.release_adapter(generation, pinned=pinned)
        except LoradError as error:
            self._send(CallFailed(call, failure_of(error)))
            return
        if adapter is None:
            self._send(CallDone(call))
        else:
            self._draining[adapter] = call

    def _answer_drained(self) -> None:
        for adapter in self._engine.gone():
            if (call := self._draining.pop(adapter, None)) is not None:
                self._send(CallDone(call))

    def _do(self, call: int, act: Callable[[], None]) -> None:
        def done() -> ToFront:
            act()
            return CallDone(call)

        self._answer(call, done)

    def _answer(self, call: int, act: Callable[[], ToFront]) -> None:
        try:
            self._send(act())
        except LoradError as error:
            self._send(CallFailed(call, failure_of(error)))


def _give_way() -> None:
    """Of this thread: what it computes takes what cores have left; others' first tokens don't wait for it."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOAD_NICE)


def read_frames(connection: socket.socket, frames: FrameBuffer, inbox: Inbox) -> None:
    """The reader thread. The front's end is the engine's end, in whatever phase: nobody is left to make tokens for."""
    while True:
        try:
            data = connection.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        for body in frames.feed(data):
            inbox.put(to_engine.decode(body))


def build(
    name: str,
    config: EngineConfig,
    on_open: Callable[[str], None],
    on_progress: Callable[[str, int, int], None],
    on_page_in: Callable[[], None],
    *,
    will_load: bool,
) -> Steppable:
    """The engine that `module:factory` makes of these arguments. `on_open`: told the base's digest before its weights
    are read."""
    module, _, attribute = name.partition(":")
    factory: Callable[..., Steppable] = getattr(importlib.import_module(module), attribute)
    return factory(config=config, on_open=on_open, on_progress=on_progress, on_page_in=on_page_in, will_load=will_load)


def main(descriptor: int, engine_name: str) -> int:
    """Runs an engine for the front at the other end of `descriptor`."""
    configure("text", "warning")
    sys.setswitchinterval(SWITCH_SECONDS)
    open_files.allow_all()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(True)

    def send(message: ToFront) -> None:
        try:
            connection.sendall(pack(message))
        except OSError:
            os._exit(0)

    inbox = Inbox()
    threading.Thread(
        target=read_frames, args=(connection, FrameBuffer(), inbox), name="lorad-read", daemon=True
    ).start()
    first, *rest = inbox.take(None)
    if not isinstance(first, Start):
        send(Fatal(failure_of(EngineFailure("the first message must be Start", code="engine_protocol"))))
        return 1
    configure(first.config.log_format, first.config.log_level)
    try:
        engine = build(
            engine_name,
            first.config,
            lambda digest: send(Opened(digest)),
            lambda stage, done, total: send(Progress(stage, done, total)),
            inbox.wake,
            will_load=first.will_load,
        )
        send(Ready(engine.model_info))
        loop = Loop(engine, inbox, send)
        for item in rest:
            loop._handle(item)
        # What exists now stays; the collector need not walk the model's objects again and again.
        gc.collect()
        gc.freeze()
        loop.run()
    except LoradError as error:
        send(Fatal(failure_of(error)))
        return 1
    except MemoryError as error:
        failure = EngineFailure(f"not enough memory ({error}): lower kv_cache_memory_bytes", code="out_of_memory")
        send(Fatal(failure_of(failure)))
        return 1
    except Exception as error:
        log.exception("the engine failed")
        message = f"the engine failed ({type(error).__name__})"
        send(Fatal(failure_of(EngineFailure(message, code="engine_failed"))))
        return 1
    return 0


if __name__ == "__main__":
    # A thread that still prepares an adapter must not hold the process back.
    os._exit(main(int(sys.argv[1]), sys.argv[2]))
