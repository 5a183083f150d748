"""`serve`: engine process, adapters, listening socket, and an orderly stop.

A stop signal lets running requests end within `drain_seconds`, while new ones get 503; a second one ends at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web

from lorad import open_files
from lorad.config import EngineConfig, ServerConfig, parse_lora_modules
from lorad.control.manager import AdapterManager
from lorad.control.routes import ControlRoutes
from lorad.control.setup import make_manager, on_unknown
from lorad.demo.base import resolve_model
from lorad.engine.client import DEFAULT_ENGINE, ProcessEngine
from lorad.engine.messages import AdapterInfo, Progress
from lorad.errors import AdapterRejected, InvalidRequest, ModelRejected
from lorad.named_file import expanded
from lorad.observe.logs import configure
from lorad.observe.tracing import make_tracing
from lorad.server.app import Front, make_app
from lorad.server.auth import check_key
from lorad.server.listening import address_of, bind
from lorad.server.registry import Registry
from lorad.server.revival import Revival
from lorad.server.runner import Runner
from lorad.store.state import StateFile, state_path
from lorad.tenants.serving import Tenancy
from lorad.text.model import load_text_model

log = logging.getLogger("lorad.server")

CUT_SECONDS = 2.0
"""After the deadline: how long error events may take to reach their clients."""


class Server:
    """A running server: `start`, use it, `stop`."""

    def __init__(
        self,
        engine_config: EngineConfig,
        server_config: ServerConfig,
        *,
        engine: str = DEFAULT_ENGINE,
        on_progress: Callable[[Progress], None] | None = None,
        on_adapter: Callable[[AdapterInfo], None] = lambda info: None,
        on_restored: Callable[[int, int, int], None] = lambda done, failed, total: None,
    ) -> None:
        """`on_restored(done, failed, total)`: now and then, how far bringing back what was asked for before the start
        is; the server serves meanwhile."""
        path, self._name = resolve_model(engine_config.model)
        self._engine_config = dataclasses.replace(engine_config, model=str(path))
        self._config = server_config
        self._on_adapter = on_adapter
        self._on_restored = on_restored
        if server_config.tenants and server_config.api_key:
            raise InvalidRequest(
                "api_key: with --tenants keys are made by `lorad keys add`", code="option_conflict", param="api_key"
            )
        check_key("api_key", server_config.api_key)
        check_key("control_key", server_config.control_key)
        if server_config.metrics_port and server_config.metrics_port == server_config.port:
            raise InvalidRequest(
                f"metrics_port: a port of its own, got {server_config.port}, which is --port",
                code="option_conflict",
                param="metrics_port",
            )
        self._loads = bool(server_config.control_key or server_config.adapter_registry or server_config.tenants)
        self._tracing = make_tracing(server_config.otlp_endpoint, os.environ)
        will_load = self._loads or bool(server_config.lora_modules)
        self.engine = ProcessEngine(
            self._engine_config,
            engine=engine,
            on_open=self._opened,
            on_progress=on_progress,
            will_load=will_load,
        )
        self._revival = Revival(self.engine, self._resume)
        self.engine.on_death = self._revival.begin
        self.front: Front | None = None
        self.manager: AdapterManager | None = None
        self._digest: asyncio.Future[str] | None = None
        """The base's, while the engine that will serve it starts."""
        self._state: StateFile | None = None
        """Until the manager has it."""
        self.tenancy: Tenancy | None = None
        self.address = ""
        self.metrics_address = ""
        """Of the listener for /metrics, if there is one."""
        self._runners: list[Runner] = []
        self._sockets: list[socket.socket] = []
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Loads everything, listens, and gives the address. A failure leaves nothing running."""
        modules = parse_lora_modules(self._config.lora_modules)
        try:
            # Before the model is loaded: a port that is taken shouldn't cost that time.
            self._sockets.append(bind(self._config.host, self._config.port))
            if self._config.metrics_port:
                self._sockets.append(bind(self._config.metrics_host, self._config.metrics_port))
            async with asyncio.TaskGroup() as tasks:
                text_task = tasks.create_task(
                    asyncio.to_thread(load_text_model, self._engine_config.model, self._config.chat_template)
                )
                model_task = tasks.create_task(self.engine.start())
                if self._loads:
                    self._digest = asyncio.get_running_loop().create_future()
                    tasks.create_task(self._open_state(self._digest))
            text, model = text_task.result(), model_task.result()
            if text.tokenizer.size > model.vocab_size:
                raise ModelRejected(
                    f"the tokenizer has {text.tokenizer.size} tokens, the model {model.vocab_size}",
                    code="tokenizer_vocab",
                )
            registry = Registry([self._config.served_model_name or self._name], model)
            config = self._engine_config
            self.front = Front(
                self.engine,
                text,
                registry,
                self._config,
                in_flight_max=config.max_num_seqs + config.max_waiting,
                combined_max=config.max_combined_adapters,
                step_adapters_max=config.max_loras or config.max_num_seqs,
                rows_max=config.max_num_seqs,
                tracing=self._tracing,
            )
            if self._config.tenants:
                self.tenancy = Tenancy(state_path(self._config.state_file), self.engine)
                self.front.ledger = self.tenancy.ledger
                await self.tenancy.start(self.front.limits)
            if self._state is not None:
                self.manager = await asyncio.to_thread(
                    make_manager, self.engine, registry, self.front.in_flight, self._config, self._state
                )
                self._state = None
                await self.manager.read_state(taken=modules)
                self.front.names.on_unknown = on_unknown(self.manager, self._config)
                self.front.names.is_taken = self.manager.has
                self.manager.check_load = self.front.shortage.check_load
            await self._load(registry, modules)
            await self._listen(self.front)
            self._watch = asyncio.create_task(self.front.shortage.watch())
            if self.manager is not None:
                self.manager.begin_restore(self._on_restored)
        except BaseException as error:
            await self._abandon()
            raise _first(error) from None
        return self.address

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Drains, then ends everything, the engine process too."""
        limit = self._config.drain_seconds if drain_seconds is None else drain_seconds
        if self.front is not None:
            self.front.drain()
            try:
                async with asyncio.timeout(limit):
                    await self.front.gate.emptied()
            except TimeoutError:
                self.front.cut()
                try:
                    async with asyncio.timeout(CUT_SECONDS):
                        await self.front.gate.emptied()
                except TimeoutError:
                    pass
        await self._abandon()

    def _opened(self, digest: str) -> None:
        if self._digest is not None and not self._digest.done():
            self._digest.set_result(digest)

    async def _open_state(self, digest: asyncio.Future[str]) -> None:
        """Before the weights are read: a file that another server uses shouldn't cost that time."""
        self._state = await asyncio.to_thread(StateFile, state_path(self._config.state_file), await digest)

    async def _load(self, registry: Registry, modules: dict[str, str]) -> None:
        for name, path in modules.items():
            if self.manager is not None:
                await self.manager.bring_back(name)
                record = self.manager.find(name)
                if record is not None and record.info is not None:
                    continue  # it was reloaded while a server ran; that was asked for later than the option
            registry.check_name(name)
            info = await self.engine.load_adapter(name, str(expanded(path)))
            registry.publish(info)
            if self.manager is not None:
                self.manager.adopt(name, path, info)
            self._on_adapter(info)

    async def _resume(self) -> None:
        """Tells a fresh engine what the one before it knew."""
        front = self.front
        assert front is not None
        front.combinations.engine_died()
        if self.tenancy is not None:
            await self.tenancy.engine_died()
        if self.manager is not None:
            await self.manager.engine_died()
        for name, path in parse_lora_modules(self._config.lora_modules).items():
            await self._load_again(front.registry, name, path)
        if self.manager is not None:
            self.manager.begin_restore(self._on_restored)
        front.metrics.engine_started_again()

    async def _load_again(self, registry: Registry, name: str, path: str) -> None:
        """Loads what an option names, unless it was unloaded, or what the name is now came later than the option."""
        before = registry.adapters.get(name)
        record = None if self.manager is None else self.manager.find(name)
        if before is None or (record is not None and record.digest):
            return
        try:
            info = await self.engine.load_adapter(name, str(expanded(path)))
        except AdapterRejected as error:
            log.error("adapter %r can't be loaded again: %s", name, error.message)
            if registry.adapters.get(name) is before:
                registry.withdraw(name)
                if self.manager is not None:
                    self.manager.lose(name, error)
            return
        if registry.adapters.get(name) is not before:  # that has happened meanwhile
            await self.engine.release_adapter(info.generation, life=info.life)
            return
        registry.publish(info)
        if self.manager is not None:
            self.manager.adopt(name, path, info)

    async def _listen(self, front: Front) -> None:
        control = None if self.manager is None else ControlRoutes(self.manager, self.engine)
        apps = make_app(front, control, self.tenancy), front.scrapes.application()
        for bound, app in zip(self._sockets, apps, strict=False):  # the second one if there's a listener for it
            runner = Runner(app, shutdown_timeout=1.0)
            self._runners.append(runner)
            await runner.setup()
            await web.SockSite(runner, bound, backlog=1024).start()
        self.address, self.metrics_address, *_ = [*map(address_of, self._sockets), ""]

    async def _abandon(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._revival.stop()
        for runner in self._runners:
            await runner.cleanup()
        self._runners = []
        if self.front is not None:
            await self.front.close()
        if self.manager is not None:
            await self.manager.close()
        if self._state is not None:
            self._state.close()
            self._state = None
        await self.engine.stop()
        if self.tenancy is not None:  # the engine's last words tell what requests have cost that were given up
            await self.tenancy.stop()
        for bound in self._sockets:
            bound.close()


def serve(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    *,
    engine: str = DEFAULT_ENGINE,
    say: Callable[[str], None] | None = None,
) -> int:
    """Serves until a stop signal; gives the exit code. What prevents the start is raised as a `LoradError`."""
    import uvloop

    configure(engine_config.log_format, engine_config.log_level, access=server_config.log_requests)
    open_files.allow_all()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_serve(engine_config, server_config, engine, say or _say))
        finally:
            ignore_stop_signals()


async def _serve(
    engine_config: EngineConfig, server_config: ServerConfig, engine: str, say: Callable[[str], None]
) -> int:
    server = Server(
        engine_config,
        server_config,
        engine=engine,
        on_progress=lambda progress: _note(describe_progress(progress)),
        on_adapter=lambda info: say(describe_adapter(info)),
        on_restored=lambda done, failed, total: _note(describe_restored(done, failed, total)),
    )
    stop = StopSignals(server)
    if not await stop.unless_asked(server.start()):
        return 0
    say(f"lorad: serving {server_name(server)} on {server.address}")
    if server.metrics_address:
        say(f"lorad: metrics on {server.metrics_address}/metrics")
    gc.collect()
    gc.freeze()
    await stop.asked.wait()
    say(stopping_line(server_config))
    await server.stop()
    return 0


class StopSignals:
    """SIGINT and SIGTERM of a server: the first asks for a stop, the second ends at once."""

    def __init__(self, server: Server) -> None:
        self.asked = asyncio.Event()
        self._server = server
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    async def unless_asked(self, work: Coroutine[Any, Any, object]) -> bool:
        """Does `work`; a stop that is asked for cancels it, and gives False."""
        asked, working = asyncio.create_task(self.asked.wait()), asyncio.create_task(work)
        await asyncio.wait({asked, working}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if working.done():
            working.result()
            return True
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return False

    def _on_signal(self) -> None:
        if self.asked.is_set():
            self._server.engine.kill()
            os._exit(0)
        self.asked.set()


def ignore_stop_signals() -> None:
    """All is done: a signal that comes while the interpreter leaves must not change the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def stopping_line(config: ServerConfig) -> str:
    """What is said when a stop was asked for."""
    return f"lorad: stopping; running requests have {config.drain_seconds:g} s, a second signal ends at once"


def server_name(server: Server) -> str:
    """The base's public name."""
    return server.front.registry.base_name if server.front is not None else ""


def describe_progress(progress: Progress) -> str:
    """One line about what a start is at; "" for what passes in no time."""
    if progress.stage == "weights":
        return "lorad: loading the weights"
    if progress.stage == "operators":
        return f"lorad: measuring operators on this machine, once ({progress.done} of {progress.total})"
    return ""


def describe_restored(done: int, failed: int, total: int) -> str:
    """One line about how far bringing adapters back is."""
    failures = f", {failed} failed" if failed else ""
    return f"lorad: {done} of {total} adapters of the state file are back{failures}"


def describe_adapter(info: AdapterInfo) -> str:
    """A line about a loaded adapter, and one for each warning."""
    return "\n".join(
        (
            f"adapter {info.name}: rank {info.rank}, {info.modules} modules, {info.bytes / 1e6:.1f} MB, "
            f"{info.pages} pages, generation {info.generation}",
            *(f"adapter {info.name}: warning: {warning}" for warning in info.warnings),
        )
    )


def _first(error: BaseException) -> BaseException:
    """The failure itself rather than the group that a task group makes of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _note(line: str) -> None:
    """On stderr, as what is said before there's an address is for people."""
    if line:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
