"""`GET /v1/inventory`: what this server tells routers of itself, as a stream of events. For operators.

The first event is all there is, each later one what has changed since the one before, at least every `LEAST_SECONDS`:
a router that falls behind, or comes again, gets all of it again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from lorad.control.manager import AdapterManager
from lorad.engine.handle import EngineHandle
from lorad.engine.messages import AdapterInfo, AdapterStats, Stats
from lorad.errors import InvalidRequest, LoradError, Overloaded
from lorad.fleet.inventory import (
    EVERY_SECONDS,
    LEAST_SECONDS,
    PATH,
    ROUTE_HEADER,
    AdapterNow,
    Inventory,
    LoadTimes,
    Tier,
)
from lorad.server.failures import Handler
from lorad.server.gate import Gate
from lorad.server.pace import Pace

ROUTERS_MAX = 16
"""Routers that may listen at once: each is told of all adapters."""
BUSY_PART = 0.05
"""Of the time: how long looking may take, however many adapters there are."""
PEAK_SECONDS = 60.0
WRITE_SECONDS = 10.0
"""How long a router may leave events unread before it's let go."""

_ROUTER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROUTE = re.compile(r"([A-Za-z0-9_-]{1,64}):([0-9]{1,18})")
_TIERS: dict[str, Tier] = {"hot": "hot", "loading": "loading"}
"""By the engine's words; whatever else is registered is in its memory."""


class Sources(NamedTuple):
    """Where the figures come from."""

    handle: EngineHandle
    manager: AdapterManager
    gate: Gate
    pace: Pace


class Peak:
    """The most that a figure was lately."""

    def __init__(self, seconds: float = PEAK_SECONDS, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._seen: deque[tuple[float, int]] = deque()
        """Falling: one that isn't the most any more, once a later one is as much, isn't kept."""

    def saw(self, figure: int) -> int:
        """It's this now. Gives the most."""
        now = self._now()
        while self._seen and self._seen[-1][1] <= figure:
            self._seen.pop()
        self._seen.append((now, figure))
        while self._seen[0][0] < now - self._seconds:
            self._seen.popleft()
        return self._seen[0][1]


class Inventories:
    """The stream, and which requests of routers have come."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self._seen: dict[str, int] = {}
        """By router that listens."""
        self._streams: dict[str, object] = {}
        """Likewise its newest stream: one that comes again may be here before its end was noticed."""
        self._number = 0
        self._look: asyncio.Task[Stats] | None = None
        self._known: Stats | None = None
        self._looked_at = 0.0
        self._every = EVERY_SECONDS
        self._sequences = Peak()

    @property
    def watched(self) -> bool:
        """Whether any router listens."""
        return bool(self._seen)

    def add_to(self, app: web.Application) -> None:
        """Adds the route, and notes the requests that routers send."""
        app.router.add_get(PATH, self.inventory)
        app.middlewares.append(self._note())  # type: ignore[arg-type]

    def arrived(self, request: web.Request) -> None:
        """A request is in the engine's queue, or over."""
        found = _ROUTE.fullmatch(request.headers.get(ROUTE_HEADER, ""))
        if found is not None and found[1] in self._seen:  # others' ids are of nobody that listens
            self._seen[found[1]] = max(self._seen[found[1]], int(found[2]))

    async def inventory(self, request: web.Request) -> web.StreamResponse:
        """What this server has, as events: all of it, then what changes. `router`: the listener's id."""
        router = request.query.get("router", "")
        if not _ROUTER.fullmatch(router):
            raise InvalidRequest(
                f"router: 1 to 64 letters, digits, - and _, got {router[:64]!r}", code="field_form", param="router"
            )
        if router not in self._seen and len(self._seen) >= ROUTERS_MAX:
            raise Overloaded(f"{ROUTERS_MAX} routers listen already", code="routers_full")
        self._seen.setdefault(router, 0)
        this = self._streams[router] = object()
        try:
            return await self._stream(request, router, this)
        finally:
            if self._streams[router] is this:
                del self._seen[router], self._streams[router]

    async def _stream(self, request: web.Request, router: str, this: object) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
        )
        told: Inventory | None = None
        adapters: dict[str, AdapterNow] = {}
        known_aliases: dict[str, str] = {}
        told_at = 0.0
        while self._streams[router] is this:
            # Before the engine is asked: what was seen is in its figures.
            seen = self._seen[router]
            try:
                stats = await self._stats()
            except LoradError:
                if told is None:
                    raise
                return response  # its end is the news
            now_adapters, aliases = self._adapters(stats), self._from.manager.registry.aliases
            full = self._inventory(stats, seen)
            if told is None:
                await response.prepare(request)
                event = msgspec.structs.replace(full, adapters=list(now_adapters.values()), aliases=aliases)
            else:
                changed = [card for name, card in now_adapters.items() if adapters.get(name) != card]
                changed += [AdapterNow(name, "absent") for name in adapters.keys() - now_adapters.keys()]
                event = msgspec.structs.replace(
                    full,
                    base=told.number,
                    adapters=changed,
                    aliases=None if aliases == known_aliases else aliases,
                )
            at = asyncio.get_running_loop().time()
            if told is None or _differs(event, told) or at - told_at >= LEAST_SECONDS:
                async with asyncio.timeout(WRITE_SECONDS):
                    await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")
                told, adapters, known_aliases, told_at = event, now_adapters, aliases, at
            await asyncio.sleep(self._every)
        return response

    # figures

    async def _stats(self) -> Stats:
        """One look for all that listen. An engine answers between two steps: while one takes long, what it said last is
        told, beside what is known without it, so that nobody takes a busy server for one that is gone."""
        now = asyncio.get_running_loop().time()
        if self._look is None or (self._look.done() and now - self._looked_at > self._every / 2):
            self._looked_at = now
            self._look = asyncio.create_task(self._from.handle.stats())
            self._look.add_done_callback(self._looked)
        try:
            async with asyncio.timeout(None if self._known is None else LEAST_SECONDS):
                self._known = await asyncio.shield(self._look)
        except TimeoutError:
            fault = self._from.handle.fault
            if fault is not None:
                raise fault from None
        assert self._known is not None
        return self._known

    def _looked(self, look: asyncio.Task[Stats]) -> None:
        took = asyncio.get_running_loop().time() - self._looked_at
        # An engine in the middle of a step answers when that is over: that wait costs nobody anything.
        if not look.cancelled() and look.exception() is None:
            took *= min(len(look.result().adapters) / 1000, 1.0)
        self._every = max(EVERY_SECONDS, min(took / BUSY_PART, LEAST_SECONDS))

    def _inventory(self, stats: Stats, seen: int) -> Inventory:
        handle, pace, registry = self._from.handle, self._from.pace, self._from.manager.registry
        model = handle.model
        self._number += 1
        peak = self._sequences.saw(stats.pages_sequences)
        return Inventory(
            number=self._number,
            seen=seen,
            model=registry.base_name,
            digest=model.digest,
            queue_seconds=pace.queue_seconds,
            token_seconds=pace.token_seconds,
            token_bytes=pace.token_bytes,
            draining=self._from.gate.draining,
            running=stats.running,
            waiting=stats.waiting,
            page_bytes=model.page_bytes,
            pages=stats.pages_total,
            pages_free=stats.pages_free,
            adapter_bytes=stats.pages_adapters * model.page_bytes,
            adapter_bytes_max=max(stats.pages_total - peak, 0) * model.page_bytes,
            page_ins=stats.page_ins,
            loads=self._loads(stats),
        )

    def _loads(self, stats: Stats) -> LoadTimes:
        warm = stats.page_in_seconds / stats.page_in_bytes if stats.page_in_bytes else None
        check, fetch = self._from.manager.rates
        # Without a page-in the rest is still most of it.
        cold = None if check is None else check + (warm or 0.0)
        absent = None if cold is None or fetch is None else fetch + cold
        return LoadTimes(warm, cold, absent)

    def _adapters(self, stats: Stats) -> dict[str, AdapterNow]:
        manager = self._from.manager
        infos = manager.registry.adapters
        found: dict[str, AdapterNow] = {}
        for record in manager.records:
            info = infos.get(record.name)
            if info is not None:
                found[record.name] = AdapterNow(
                    record.name,
                    _tier(info, stats.adapters),
                    info.generation,
                    info.bytes,
                    record.pinned,
                    record.source,
                )
            elif record.awaited is not None:
                tier: Tier = "cold" if record.digest else "absent"
                found[record.name] = AdapterNow(record.name, tier, source=record.source, pinned=record.pinned)
        return found

    def _note(self) -> Callable[..., object]:
        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            finally:
                self.arrived(request)  # whatever became of it

        return note


def _tier(info: AdapterInfo, stats: dict[str, AdapterStats]) -> Tier:
    known = stats.get(info.generation)
    return "warm" if known is None else _TIERS.get(known.state, "warm")


def _differs(event: Inventory, told: Inventory) -> bool:
    """Whether a router would learn anything: not from the number of an inventory."""
    if event.adapters or event.aliases is not None:
        return True
    blank: dict[str, Any] = {"number": 0, "base": None, "adapters": [], "aliases": None}
    return msgspec.structs.replace(event, **blank) != msgspec.structs.replace(told, **blank)
