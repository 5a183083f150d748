"""A router for tests, over servers that do what a test tells them to: on real sockets, one loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import aiohttp
import msgspec
from aiohttp import web

from lorad.fleet.config import RouteConfig
from lorad.fleet.inventory import PATH, ROUTE_HEADER, AdapterNow, Inventory
from lorad.fleet.run import RouteServer

KEY = "operator"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def adapter(name: str, tier: Any = "warm", **fields: Any) -> AdapterNow:
    return AdapterNow(name, tier, **{"generation": f"gen-{name}", "bytes": 1 << 20, **fields})


class FakeReplica:
    """A server that publishes what it's told, and answers by `handler`."""

    def __init__(self) -> None:
        self.url = ""
        self.handler: Handler = self.says
        self.asked: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.called: list[tuple[str, str, Any]] = []
        """Control calls: method, path, body."""
        self.inventory = Inventory(1, adapters=[], model="base")
        self.silent = False
        self.listeners = 0
        self.aborted = 0
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._ends: set[asyncio.Task[Any]] = set()

    def publish(self, **changed: Any) -> None:
        """Another whole inventory."""
        self.inventory = msgspec.structs.replace(self.inventory, number=self.inventory.number + 1, **changed)
        self._changed.set()

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get(PATH, self._inventory)
        app.router.add_route("*", "/v1/lora_prewarm", self._control)
        app.router.add_route("*", "/v1/lora_adapters/{name:.+}", self._control)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for task in self._ends:
                task.cancel()
            await runner.cleanup()

    async def _inventory(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.Response(status=401)
        task = asyncio.current_task()
        assert task is not None
        self._ends.add(task)
        self.listeners += 1
        try:
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                self._changed.clear()
                if not self.silent:
                    await response.write(b"data: " + msgspec.json.encode(self.inventory) + b"\n\n")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await self._changed.wait()
        finally:
            self.listeners -= 1
            self._ends.discard(task)

    async def _control(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        self.called.append((request.method, request.path, await request.json()))
        return web.json_response({})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        self.bodies.append(await request.read())
        try:
            return await self.handler(request)
        except asyncio.CancelledError:
            self.aborted += 1
            raise

    async def says(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"from": self.url})

    async def refuses(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"code": "draining"}}, status=503, headers={"Retry-After": "1"})

    async def resets(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        await asyncio.sleep(10)
        raise AssertionError

    async def hangs(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    def streams(self, parts: int, then: str = "end") -> Handler:
        """So many events, then the end, a reset, or nothing."""

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for part in range(parts):
                await response.write(b"data: %d\n\n" % part)
                await asyncio.sleep(0.02)
            assert request.transport is not None
            if then == "reset":
                request.transport.abort()
            if then != "end":
                await asyncio.sleep(60)
            return response

        return answer

    def cut(self, length: int) -> Handler:
        """Half of a body of a known length."""

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": str(length)})
            await response.prepare(request)
            await response.write(b"x" * (length // 2))
            await asyncio.sleep(0.02)
            assert request.transport is not None
            request.transport.abort()
            return response

        return answer


class Answer(NamedTuple):
    """With its body read."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Routed:
    """A router's client."""

    def __init__(self, server: RouteServer, address: str, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.address = address
        self.session = session
        assert server.front is not None
        self.front = server.front

    async def post(self, path: str = "/v1/completions", *, headers: Any = None, **fields: Any) -> Answer:
        async with self.session.post(self.address + path, json=fields, headers=headers) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, key: str = "") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.session.get(self.address + path, headers=headers) as response:
            body = await response.read()
            return response.status, msgspec.json.decode(body) if response.content_type.endswith("json") else body

    async def metric(self, name: str, **labels: str) -> float:
        """One figure of a scrape; 0 of a series that isn't there."""
        await self.get("/metrics", KEY)
        return self.front.metrics.registry.get_sample_value(f"lorad_router_{name}", labels) or 0.0

    async def until(self, count: int) -> None:
        """So many live replicas."""
        async with asyncio.timeout(20):
            while len(self.front.replicas.live) != count:
                await asyncio.sleep(0.01)


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def routed(*urls: str, live: int | None = None, **options: Any) -> AsyncIterator[Routed]:
    """A router over these servers, when `live` of them (all) are heard of."""
    options = {"port": 0, "replica": list(urls), "control_key": KEY, "drain_seconds": 0.0, **options}
    server = RouteServer(RouteConfig(**options))
    address = await server.start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            client = Routed(server, address, session)
            await client.until(len(urls) if live is None else live)
            yield client
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def replicas(count: int) -> AsyncIterator[list[FakeReplica]]:
    made = [FakeReplica() for _ in range(count)]
    try:
        for one in made:
            await one.start()
        yield made
    finally:
        for one in made:
            await one.stop()


__all__ = ["KEY", "ROUTE_HEADER", "FakeReplica", "Routed", "adapter", "eventually", "replicas", "routed"]
