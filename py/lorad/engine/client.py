"""The engine process as the front sees it: starts it, talks to it, and notices when it dies.

The socket is one end of a socketpair that the child inherits: it has no name that anybody else could open, and each
side sees the end of the other at once, however that came.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import msgspec

from lorad.adapters.combine.weighted import Term
from lorad.config import EngineConfig
from lorad.engine.child import environment, how_it_ended, reap
from lorad.engine.frames import FrameBuffer, error_of, pack, to_front
from lorad.engine.handle import Sink
from lorad.engine.messages import (
    Abort,
    AdapterInfo,
    AdapterLoaded,
    CallDone,
    CallFailed,
    CombineAdapters,
    Fatal,
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
from lorad.errors import EngineFailure, LoradError, ModelRejected, Unavailable

log = logging.getLogger("lorad.server")

BEAT_SECONDS = 2.0
STALL_SECONDS = 60.0
"""An engine that leaves a question unanswered for this long counts as not working. A step must be shorter than that."""

BURY_SECONDS = 5.0
"""How long an engine whose socket is closed may take to end by itself."""

SOCKET_BYTES = 4 << 20

DEFAULT_ENGINE = "lorad.engine.engine:process_engine"


class ProcessEngine:
    """An `EngineHandle` over a child process."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        engine: str = DEFAULT_ENGINE,
        on_open: Callable[[str], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        will_load: bool = False,
    ) -> None:
        """`on_open`: told the base's digest before its weights are read, at each start. `will_load`: adapters will be
        loaded while it serves."""
        self._will_load = will_load
        self._config = config
        self._engine = engine
        self._on_open = on_open
        self._on_progress = on_progress
        self._model: ModelInfo | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._wire: _Wire | None = None
        self._ready: asyncio.Future[ModelInfo] | None = None
        self._beat: asyncio.Task[None] | None = None
        self._burial: asyncio.Task[None] | None = None
        self._sinks: dict[int, Sink] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)
        self._asked_at: float | None = None
        self._death: LoradError | None = None
        self._cause: LoradError | None = None
        self._stopping = False
        self.on_death: Callable[[], None] | None = None
        """Called when a process that served has ended by itself, and nothing of it is left: `restart` may follow."""
        self._launching = False
        self._resuming = False
        self.life = 0
        """Which process it is: one more with each start."""

    # life

    async def start(self) -> ModelInfo:
        """Starts the process and waits until its model is loaded."""
        try:
            return await self._launch()
        except BaseException:
            await self.stop(grace_s=0.0)
            raise

    async def restart(self) -> None:
        """Starts another process in place of one that has died. It knows no adapters and no tenants: calls that tell it
        are taken when this returns, requests from `resume` on."""
        before = self.model
        if self._burial is not None:  # one that died while it was told what to know may still be on its way out
            await self._burial
        self._resuming = True
        try:
            model = await self._launch()
        except BaseException:
            self._drop()
            raise
        if model.digest != before.digest:
            self._model = before
            self._drop()
            raise ModelRejected(
                f"the base isn't the one that was served: {model.digest[:12]}, before {before.digest[:12]}",
                code="base_changed",
            )

    def _drop(self) -> None:
        """Ends a process that came to nothing; its end is no news."""
        self._wire = None
        self.kill()
        self._death = self._death or Unavailable("the engine is being started again", code="engine_restarting")

    def resume(self) -> None:
        """Requests are taken again. Raises why not, if the process has died since `restart`."""
        if self._death is not None:
            raise self._death
        self._resuming = False

    async def _launch(self) -> ModelInfo:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        try:
            # A process group of its own: a terminal's Ctrl-C is for the front, which drains before it ends the engine.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lorad.engine.process", str(theirs.fileno()), self._engine],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment(),
                process_group=0,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._ready = loop.create_future()
        self._launching = True
        try:
            transport, self._wire = await loop.create_unix_connection(lambda: _Wire(self), sock=ours)
            self._transport = transport
            self._send(Start(self._config, self._will_load))
            self._model = await self._ready
        finally:
            self._launching = False
        self.life += 1
        self._death = self._asked_at = None
        self._beat = asyncio.create_task(self._keep_asking())
        return self._model

    async def stop(self, grace_s: float = 5.0) -> None:
        """Ends the process: asked first, killed after `grace_s`. Nothing of it is left when this returns."""
        self._stopping = True
        if self._beat is not None:
            self._beat.cancel()
        process = self._process
        if process is None:
            return
        if self._burial is not None:
            await self._burial
        if self._transport is not None and not self._transport.is_closing():
            self._send(Shutdown())
        await reap(process, grace_s)
        if self._transport is not None:
            self._transport.close()
        self._die(Unavailable("the engine has been stopped", code="engine_stopped"))

    def kill(self) -> None:
        """Ends the process at once, from a signal handler's point of view."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    @property
    def pid(self) -> int | None:
        """The process id of the engine; None before it was started."""
        return None if self._process is None else self._process.pid

    # EngineHandle

    @property
    def model(self) -> ModelInfo:
        """The base model."""
        if self._model is None:
            raise Unavailable("the engine is starting", code="engine_starting")
        return self._model

    @property
    def fault(self) -> LoradError | None:
        """Why no tokens can be made now."""
        if self._death is not None:
            return self._death
        if self._resuming:
            return Unavailable("the engine is being started again", code="engine_restarting")
        if self._model is None:
            return Unavailable("the engine is starting", code="engine_starting")
        if self._asked_at is not None:
            silent = asyncio.get_running_loop().time() - self._asked_at
            if silent > STALL_SECONDS:
                return Unavailable(f"the engine has not answered for {silent:.0f} s", code="engine_stalled")
        return None

    def submit(self, request: Generate, sink: Sink) -> None:
        """Hands a request over."""
        if (fault := self.fault) is not None:
            raise fault
        self._sinks[request.id] = sink
        self._send(request)

    def abort(self, request_id: int) -> None:
        """Ends a request early. Its sink stays until the engine tells of the end, which has the counts."""
        if request_id in self._sinks and self._death is None:
            self._send(Abort(request_id))

    async def load_adapter(self, name: str, path: str) -> AdapterInfo:
        """Reads, checks and registers an adapter folder."""
        return await self._load(lambda call: LoadAdapter(call, name, path))

    async def combine_adapters(self, terms: Sequence[Term]) -> AdapterInfo:
        """Registers the sum of registered adapters."""
        return await self._load(lambda call: CombineAdapters(call, list(terms)))

    async def release_adapter(self, generation: str, *, pinned: bool = False, life: int | None = None) -> None:
        """Undoes one load, and its pin. The last one of a generation takes no more requests for it, and returns when
        it's drained and forgotten. `life`: of the load; what a process held that is gone needs no release."""
        life = self.life if life is None else life
        try:
            if life == self.life:
                await self._call(lambda call: ReleaseAdapter(call, generation, pinned))
        except Unavailable:
            if self._death is None and self.life == life:
                raise

    async def pin_adapter(self, generation: str, pinned: bool) -> None:
        """Keeps a generation in pages, or no longer."""
        await self._call(lambda call: PinAdapter(call, generation, pinned))

    async def prewarm_adapter(self, generation: str) -> None:
        """Pages a generation in when there is room."""
        await self._call(lambda call: PrewarmAdapter(call, generation))

    async def set_tenant(
        self, tenant: int, *, weight: int = 100, running_max: int = 0, waiting_max: int = 0, pages_max: int = 0
    ) -> None:
        """Gives a tenant its share and limits."""
        await self._call(lambda call: SetTenant(call, tenant, weight, running_max, waiting_max, pages_max))

    async def stats(self) -> Stats:
        """The engine's counters now."""
        return cast(Stats, await self._call(GetStats))

    # messages

    async def _load(self, make: Callable[[int], ToEngine]) -> AdapterInfo:
        info: AdapterInfo = await self._call(make)
        return msgspec.structs.replace(info, life=self.life)

    def _send(self, message: ToEngine) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    async def _call(self, make: Callable[[int], ToEngine]) -> Any:
        if self._death is not None:
            raise self._death
        call = next(self._call_ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        self._send(make(call))
        try:
            return await future
        finally:
            self._calls.pop(call, None)

    async def _keep_asking(self) -> None:
        """Asks a small question now and then, so that a locked-up engine is noticed without traffic."""
        loop = asyncio.get_running_loop()
        while self._death is None:
            await asyncio.sleep(BEAT_SECONDS)
            self._asked_at = loop.time()
            answer = asyncio.create_task(self.stats())
            try:
                await asyncio.wait({answer}, timeout=STALL_SECONDS)
                if not answer.done():
                    # It may come to itself again, so the process stays for now; but nobody shall wait in silence.
                    self._give_up()
                    await asyncio.wait({answer}, timeout=STALL_SECONDS)
                if not answer.done():
                    log.error("the engine process is ended: it has not answered for %g s", 2 * STALL_SECONDS)
                    self.kill()
                await answer
            except LoradError:
                return
            finally:
                answer.cancel()
            self._asked_at = None

    def _give_up(self) -> None:
        """Ends the running requests of an engine that doesn't answer."""
        error = EngineFailure(f"the engine has not answered for {STALL_SECONDS:g} s", code="engine_stalled")
        sinks, self._sinks = self._sinks, {}
        for request_id in sinks:
            self._send(Abort(request_id))
        _fail(sinks, error)

    def _receive(self, bodies: Iterable[bytes]) -> None:
        touched: set[Sink] = set()
        for body in bodies:
            message = to_front.decode(body)
            if isinstance(message, Step):
                self._deliver(message, touched)
            else:
                self._answer(message)
        for sink in touched:
            sink.flush()

    def _deliver(self, step: Step, touched: set[Sink]) -> None:
        sinks = self._sinks
        for token in step.tokens:
            sink = sinks.get(token.id)
            if sink is not None:
                sink.token(token)
                touched.add(sink)
        for end in step.finished:
            sink = sinks.pop(end.id, None)
            if sink is not None:
                sink.finished(end)
                touched.add(sink)

    def _answer(self, message: ToFront) -> None:
        match message:
            case Progress():
                if self._on_progress is not None:
                    self._on_progress(message)
            case Opened(digest):
                if self._on_open is not None:
                    self._on_open(digest)
            case Ready(model):
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(model)
            case AdapterLoaded(call, adapter):
                self._settle(call, adapter)
            case CallDone(call):
                self._settle(call, None)
            case Stats(call):
                self._settle(call, message)
            case CallFailed(call, failure):
                self._settle(call, error_of(failure))
            case Fatal(failure):
                self._die(error_of(failure))

    def _settle(self, call: int, result: object) -> None:
        future = self._calls.get(call)
        if future is None or future.done():
            return
        if isinstance(result, LoradError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _die(self, cause: LoradError) -> None:
        """The engine can make no more tokens: everybody who waits for it hears so, once."""
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(cause)
        if self._death is not None:
            return
        # A request that ran gets the cause; one that comes later is told that the service is not there.
        self._cause = cause
        if self.on_death is None or self._stopping:
            self._death = Unavailable(f"the engine is gone: {cause.message}", code="engine_gone")
        else:
            what = f"the engine is being started again: {cause.message}"
            self._death = Unavailable(what, code="engine_restarting")
        sinks, self._sinks = self._sinks, {}
        _fail(sinks, cause)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(self._death)

    def _lost(self) -> None:
        if self._stopping:
            self._die(Unavailable("the engine has been stopped", code="engine_stopped"))
        else:
            self._die(EngineFailure("the engine process has ended unexpectedly", code="engine_died"))
            # Before the model is loaded, whoever waits for the start is told.
            if not self._launching:
                self._burial = asyncio.create_task(self._bury())

    async def _bury(self) -> None:
        """Leaves no zombie of a dead engine, tells the operator, and who may start it again."""
        assert self._process is not None and self._cause is not None
        code = await reap(self._process, BURY_SECONDS)
        log.error(
            "the engine process %d %s: %s. /health and all requests are answered 503 until it's started again",
            self._process.pid,
            how_it_ended(code),
            self._cause.message,
        )
        if self._beat is not None:
            self._beat.cancel()
        if self.on_death is not None and not self._stopping:
            self.on_death()


class _Wire(asyncio.Protocol):
    """The socket's callbacks."""

    def __init__(self, owner: ProcessEngine) -> None:
        self._owner = owner
        self._frames = FrameBuffer()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._owner._receive(self._frames.feed(data))
        except (EngineFailure, msgspec.MsgspecError) as error:
            self._owner._die(EngineFailure(f"the engine spoke out of turn: {error}", code="engine_protocol"))
            if self._transport is not None:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._owner._wire is self:
            self._owner._lost()


def _fail(sinks: dict[int, Sink], error: LoradError) -> None:
    for request_id, sink in sinks.items():
        sink.failed(request_id, error)
    for sink in set(sinks.values()):
        sink.flush()
