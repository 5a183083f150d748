"""`GET /v1/overview`: what the page shows, in one answer of bounded length. For operators."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from aiohttp import web

from lorad.control.manager import AdapterManager
from lorad.control.record import Record
from lorad.engine.handle import EngineHandle
from lorad.engine.messages import AdapterStats, Stats
from lorad.errors import Unavailable
from lorad.observe.recent import Recent, Waits
from lorad.page.query import Query, parse_query
from lorad.server.combinations import Combinations
from lorad.server.failures import json_response
from lorad.server.gate import Gate
from lorad.server.in_flight import InFlight
from lorad.server.registry import Registry
from lorad.tenants.file import Used
from lorad.tenants.serving import Tenancy

PREFIX = "/v1/overview"
"""For operators."""

LOOK_SECONDS = 0.5
"""The engine is asked this often at most, however many look: its answer has a line for each adapter."""

STATS_SECONDS = 2.0
OWNERS_MAX = 48
"""Adapters in the pool that are told by name; those with the most pages."""
TENANTS_MAX = 50
OPERATIONS_MAX = 12


class Sources(NamedTuple):
    """Where the figures come from."""

    handle: EngineHandle
    manager: AdapterManager
    gate: Gate
    in_flight: InFlight
    recent: Recent
    combinations: Combinations
    tenancy: Tenancy | None


class _Standing:
    """What a tenant has in flight."""

    def __init__(self) -> None:
        self.waiting = 0
        self.answering = 0
        self.longest_wait = 0.0


class Overview:
    """The handler."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self._look: asyncio.Task[Stats] | None = None
        self._looked_at = 0.0

    def add_to(self, app: web.Application) -> None:
        """Adds the route."""
        app.router.add_get(PREFIX, self.overview)

    async def overview(self, request: web.Request) -> web.Response:
        """All figures; the adapters filtered, in order, from `offset` on."""
        query = parse_query(request.query)
        stats = await self._stats()
        now = asyncio.get_running_loop().time()
        records = self._from.manager.records
        return json_response(
            {
                "object": "overview",
                "at": self._from.manager.registry.now(),
                "model": self._model(),
                "engine": self._engine(stats),
                "pages": self._pages(stats, records),
                "recent": self._recent(now),
                "adapters": self._adapters(stats, records, query),
                "tenants": self._tenants(now),
                "operations": [one.card() for one in self._from.manager.operations.listing()[-OPERATIONS_MAX:]],
            },
            headers={"Cache-Control": "no-store"},
        )

    async def _stats(self) -> Stats:
        now = asyncio.get_running_loop().time()
        if self._look is None or (self._look.done() and now - self._looked_at > LOOK_SECONDS):
            self._look, self._looked_at = asyncio.create_task(self._from.handle.stats()), now
            # A failure is for those who wait; it may be that all of them have left.
            self._look.add_done_callback(lambda look: look.cancelled() or look.exception())
        try:
            async with asyncio.timeout(STATS_SECONDS):
                # Others wait for the same answer: who leaves must not end it.
                return await asyncio.shield(self._look)
        except TimeoutError:
            message = f"the engine has not answered for {STATS_SECONDS:g} s"
            raise self._from.handle.fault or Unavailable(message, code="engine_stalled") from None

    # parts of the answer

    def _model(self) -> dict[str, Any]:
        model = self._from.handle.model
        return {
            "name": self._from.manager.registry.base_name,
            "architecture": model.architecture,
            "dtype": model.dtype,
            "layers": model.layers,
            "context_length": model.context_length,
            "bytes": model.weights_bytes,
            "generation": model.digest,
        }

    def _engine(self, stats: Stats) -> dict[str, Any]:
        return {
            "running": stats.running,
            "waiting": stats.waiting,
            "in_flight": self._from.gate.inside,
            "steps": stats.steps,
            "preemptions": stats.preemptions,
            "evictions": stats.evictions,
            "page_ins": stats.page_ins,
            "page_in_bytes": stats.page_in_bytes,
        }

    def _pages(self, stats: Stats, records: list[Record]) -> dict[str, Any]:
        names: dict[str, list[str]] = {}
        for record in records:
            if record.info is not None:
                names.setdefault(record.info.generation, []).append(record.name)
        held = [(one.pages, generation) for generation, one in stats.adapters.items() if one.pages]
        held.sort(key=lambda one: (-one[0], one[1]))
        parts = self._from.combinations.parts()
        told = [
            # A generation with neither names nor parts drains: requests of before end on it.
            {
                "names": names.get(generation, [])[:3],
                "parts": parts.get(generation, []),
                "generation": generation,
                "pages": pages,
            }
            for pages, generation in held[:OWNERS_MAX]
        ]
        return {
            "total": stats.pages_total,
            "free": stats.pages_free,
            "sequences": stats.pages_sequences,
            "prefixes": stats.pages_cached,
            "adapters": stats.pages_adapters,
            "by_adapter": told,
            "adapters_in_pool": len(held),
            "page_bytes": self._from.handle.model.page_bytes,
            "page_tokens": self._from.handle.model.page_tokens,
        }

    def _recent(self, now: float) -> dict[str, Any]:
        recent = self._from.recent
        return {
            "tokens": recent.tokens(now),
            "first_tokens": _waits(recent.waits(now)),
            "first_tokens_by_second": [_waits(waits) for waits in recent.waits_by_second(now)],
        }

    def _adapters(self, stats: Stats, records: list[Record], query: Query) -> dict[str, Any]:
        registry = self._from.manager.registry
        listed = [_listed(record, stats.adapters) for record in records]
        tiers = Counter(one.tier for one in listed)
        matching = [one for one in listed if not query.tier or one.tier == query.tier]
        if query.filter:
            matching = [one for one in matching if query.filter in one.record.name.casefold()]
        matching.sort(key=lambda one: one.record.name)
        if (figure := _figure(query.sort, registry)) is not None:
            matching.sort(key=figure, reverse=True)  # those with equal figures stay in the names' order
        return {
            "total": len(records),
            "matching": len(matching),
            "offset": query.offset,
            "tiers": dict(tiers),
            "data": [
                record.card(stats, registry.last_used(record.name))
                | {"tier": tier, "pages_held": 0 if stats is None else stats.pages}
                for record, stats, tier in matching[query.offset : query.offset + query.limit]
            ],
        }

    def _tenants(self, now: float) -> dict[str, Any] | None:
        """Those with the most waiting first; None: no tenants are kept."""
        tenancy = self._from.tenancy
        if tenancy is None:
            return None
        standings: dict[int, _Standing] = {}
        for generation in self._from.in_flight:
            waiting, answering = generation.standing
            standing = standings.setdefault(generation.tenant, _Standing())
            standing.waiting += waiting
            standing.answering += answering
            if waiting:
                standing.longest_wait = max(standing.longest_wait, now - generation.began)
        used: dict[str, Used] = {}
        for (name, _), some in tenancy.ledger.totals.items():
            used[name] = used.get(name, Used()).plus(some)
        tenants = tenancy.directory.tenants
        idle = _Standing()

        def key(number: int, name: str) -> tuple[int, int, int, str]:
            standing = standings.get(number, idle)
            return -standing.waiting, -standing.answering, -used.get(name, Used()).requests, name

        shown = sorted(tenants, key=lambda tenant: key(tenant.number, tenant.name))[:TENANTS_MAX]
        waits = self._from.recent.waits_by_tenant(now)
        return {
            "total": len(tenants),
            "data": [
                {
                    "name": tenant.name,
                    "weight": tenant.weight,
                    "waiting": (standing := standings.get(tenant.number, idle)).waiting,
                    "answering": standing.answering,
                    "longest_wait_s": round(standing.longest_wait, 3),
                    "first_tokens": _waits(waits.get(tenant.number, Waits(0, None, None))),
                    "since_start": used.get(tenant.name, Used())._asdict(),
                }
                for tenant in shown
            ],
        }


class _Listed(NamedTuple):
    """An adapter, what the engine says of it, and where its weights are; of a name without any: loading or failed."""

    record: Record
    stats: AdapterStats | None
    tier: str


def _listed(record: Record, stats: dict[str, AdapterStats]) -> _Listed:
    if record.info is None:
        return _Listed(record, None, record.state)
    told = stats.get(record.info.generation)
    return _Listed(record, told, "cold" if told is None else told.state)


def _figure(sort: str, registry: Registry) -> Callable[[_Listed], float] | None:
    """What an order goes by, largest first; None: the name."""
    match sort:
        case "last_used":
            return lambda one: registry.last_used(one.record.name) or 0.0
        case "in_flight":
            return lambda one: 0 if one.stats is None else one.stats.running + one.stats.waiting
        case "bytes":
            return lambda one: 0 if one.record.info is None else one.record.info.bytes
        case "rank":
            return lambda one: 0 if one.record.info is None else one.record.info.rank
    return None


def _waits(waits: Waits) -> dict[str, Any]:
    return {
        "count": waits.seen,
        "p50_s": None if waits.p50_s is None else round(waits.p50_s, 5),
        "p95_s": None if waits.p95_s is None else round(waits.p95_s, 5),
    }
