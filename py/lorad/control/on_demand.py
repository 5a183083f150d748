"""Adapters of a registry, loaded when the first request names them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lorad.control.manager import AdapterManager
from lorad.control.operation import Operation
from lorad.control.record import Record
from lorad.errors import InvalidRequest, LoradError, NotFound, Overloaded
from lorad.sources.registry import Registry

MISSING_SECONDS = 10.0
"""How long a name that the registry hasn't got isn't asked for again."""
MISSING_MAX = 4096
GRACE_SECONDS = 5.0
"""How long one stays that was loaded or used just now, whatever the limit."""
LOADING_MAX = 64
"""Loads on demand at once; a request for one more is answered 429."""


class OnDemand:
    """Brings unknown names from a registry, as many as may be there at once; who was used longest ago goes first."""

    def __init__(
        self, manager: AdapterManager, adapters: Registry, adapters_max: int, *, now: Callable[[], float]
    ) -> None:
        self._manager = manager
        self._adapters = adapters
        self._adapters_max = adapters_max
        self._now = now
        self._missing: dict[str, float] = {}

    async def bring(self, name: str, unknown: NotFound) -> None:
        """Waits until `name` can be served. Raises `unknown` if the registry hasn't got it; if it has and it can't be
        loaded, the reason."""
        name = self._manager.registry.aliases.get(name, name)
        record = self._manager.find(name)
        if record is not None and record.failure is not None:
            raise unknown  # what it should be can't be had, and something else isn't served for it
        if record is not None and record.loading is not None and not record.wanted_by_request:
            await record.loading.wait()  # an operator's
            return
        if self._missing.get(name, 0.0) > self._now():
            raise unknown
        if sum(record.wanted_by_request for record in self._manager.records) >= LOADING_MAX:
            raise Overloaded(f"{LOADING_MAX} adapters are being loaded on demand, the limit", code="on_demand_full")
        operation = await self._load(name, unknown)
        while operation.error is not None and operation.error.code == "adapters_full":
            if (gone := self._give_way()) is None:
                break
            await gone.wait()
            operation = await self._load(name, unknown)
        if operation.error is None:
            return
        if operation.error.code == "source_missing":
            self._remember_missing(name)
            raise unknown
        raise _as_refusal(operation.error)

    async def _load(self, name: str, unknown: NotFound) -> Operation:
        """A load that has ended."""
        try:
            operation = self._manager.load(name, self._adapters.source_of(name).text, on_demand=True)
        except InvalidRequest:
            raise unknown from None  # no name that an adapter there could have
        self._manager.spawn(self._make_room_after(operation))
        await operation.wait()
        return operation

    def _remember_missing(self, name: str) -> None:
        self._missing.pop(name, None)
        self._missing[name] = self._now() + MISSING_SECONDS
        while len(self._missing) > MISSING_MAX:
            del self._missing[next(iter(self._missing))]

    async def _make_room_after(self, operation: Operation) -> None:
        """Whether or not anybody still waits for it."""
        await operation.wait()
        self._make_room()
        await asyncio.sleep(GRACE_SECONDS)
        self._make_room()

    def _make_room(self) -> None:
        there = self._there()
        for record in self._idle(there)[: max(0, len(there) - self._adapters_max)]:
            self._manager.unload(record.name, listed=False)

    def _give_way(self) -> Operation | None:
        """The engine has registered as many as it may: the unload of one, None if all are in use."""
        idle = self._idle(self._there())
        return self._manager.unload(idle[0].name, listed=False) if idle else None

    def _there(self) -> list[Record]:
        return [record for record in self._manager.records if record.on_demand and record.state == "ready"]

    def _idle(self, records: list[Record]) -> list[Record]:
        """Who was used longest ago comes first."""
        return sorted(filter(self._is_idle, records), key=self._last_used)

    def _is_idle(self, record: Record) -> bool:
        # Who asked for it may not have come to his turn yet.
        waits = self._last_used(record) > self._manager.registry.now() - GRACE_SECONDS
        return not waits and not record.pinned and not self._manager.running(record)

    def _last_used(self, record: Record) -> float:
        return self._manager.registry.last_used(record.name) or 0.0


def _as_refusal(error: LoradError) -> LoradError:
    """The same for a client that named a model, not a source."""
    return type(error)(error.message, code=error.code, param="model")  # others may hold `error` too
