"""Adapters of a registry, loaded when the first request names them."""

from __future__ import annotations

from collections.abc import Callable

from lorad.control.manager import AdapterManager
from lorad.control.record import Record
from lorad.errors import InvalidRequest, LoradError, NotFound, Overloaded
from lorad.sources.registry import Registry

MISSING_SECONDS = 10.0
"""How long a name that the registry hasn't got isn't asked for again."""
MISSING_MAX = 4096
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
        if self._missing.get(name, 0.0) > self._now():
            raise unknown
        if sum(record.on_demand and record.loading is not None for record in self._manager.records) >= LOADING_MAX:
            raise Overloaded(f"{LOADING_MAX} adapters are being loaded on demand, the limit", code="on_demand_full")
        try:
            operation = self._manager.load(name, self._adapters.source_of(name).text, on_demand=True)
        except InvalidRequest:
            raise unknown from None  # no name that an adapter there could have
        await operation.wait()
        if operation.error is None:
            self._make_room(name)
        elif operation.error.code == "source_missing":
            self._remember_missing(name)
            raise unknown
        else:
            raise _as_refusal(operation.error)

    def _remember_missing(self, name: str) -> None:
        self._missing.pop(name, None)
        self._missing[name] = self._now() + MISSING_SECONDS
        while len(self._missing) > MISSING_MAX:
            del self._missing[next(iter(self._missing))]

    def _make_room(self, name: str) -> None:
        there = [record for record in self._manager.records if record.on_demand and record.state == "ready"]
        idle = sorted((record for record in there if self._is_idle(record, name)), key=self._last_used)
        for record in idle[: max(0, len(there) - self._adapters_max)]:
            self._manager.unload(record.name)

    def _is_idle(self, record: Record, name: str) -> bool:
        return record.name != name and not record.pinned and not self._manager.running(record)

    def _last_used(self, record: Record) -> float:
        return self._manager.registry.last_used(record.name) or 0.0


def _as_refusal(error: LoradError) -> LoradError:
    """The same for a client that named a model, not a source."""
    error.param = "model"
    return error
