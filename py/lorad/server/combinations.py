"""`Combinations`: several adapters as one model of a request, made when they're first asked for together.

A combination is known by its generation, which is of its parts' generations and weights. So a part that is reloaded
makes another one, and the old one goes as soon as a name in it means something else; requests that run end on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from lorad.adapters.combine.copies import Copies, Copy
from lorad.adapters.combine.weighted import Term, Wanted, generation_of, is_plain, twice
from lorad.engine.handle import EngineHandle
from lorad.engine.messages import AdapterInfo
from lorad.errors import EngineFailure, InvalidRequest, LoradError
from lorad.models.fields import shown
from lorad.server.in_flight import InFlight
from lorad.server.names import Names
from lorad.server.registry import Change, Registry, Target
from lorad.tenants.tenant import Tenant

log = logging.getLogger("lorad.server")


@dataclass
class _Copy(Copy):
    """One combination, at the latest from when it's on its way."""

    info: AdapterInfo | None = None
    error: LoradError | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """It has come, or can't."""
    waiting: int = 0
    """Requests that wait for it."""


class Combinations:
    """Lives on the event loop."""

    def __init__(self, handle: EngineHandle, names: Names, registry: Registry, in_flight: InFlight, most: int) -> None:
        """`names`: what keeps a name from a tenant keeps it from its combinations. `most`: copies at once, those on
        their way included."""
        self._handle = handle
        self._names = names
        self._registry = registry
        self._in_flight = in_flight
        self._copies: Copies[_Copy] = Copies(most)
        self._tasks: set[asyncio.Task[None]] = set()
        registry.on_changed(self._changed)

    def __len__(self) -> int:
        return len(self._copies)

    def parts(self) -> dict[str, list[str]]:
        """The adapters' names in each, by generation."""
        return {copy.generation: list(copy.parts) for copy in self._copies}

    async def check(self, tenant: Tenant, wanted: Sequence[Wanted]) -> None:
        """Refuses names that mean no adapter to a tenant, after bringing those that come on demand."""
        await self._terms(tenant, wanted)

    async def bring(self, tenant: Tenant, base: Target, wanted: Sequence[Wanted]) -> Target:
        """What serves a combination now, under the base's name. Between its last look and its return nothing else runs:
        a request that is submitted at once is ahead of whatever takes the copy away."""
        while True:
            terms = await self._terms(tenant, wanted)
            names = tuple(term.name for term in terms)
            if is_plain(terms):
                plain = self._registry.resolve(names[0])
                return plain._replace(name=base.name, parts=names)
            copy = self._copies.find(generation_of(terms)) or self._begin(terms)
            if copy.info is not None:
                tokens_max = self._registry.tokens_max(copy.info)
                return Target(base.name, copy.generation, copy.generation, tokens_max, names)
            copy.waiting += 1
            try:
                await copy.ready.wait()
            finally:
                copy.waiting -= 1
            if copy.error is not None:
                raise copy.error

    async def close(self) -> None:
        """Ends what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _terms(self, tenant: Tenant, wanted: Sequence[Wanted]) -> list[Term]:
        """Each part as it is now, all at one moment."""
        try:
            for part in wanted:
                await self._names.exact(tenant, part.name)
            targets = [self._names.now(tenant, part.name) for part in wanted]
        except LoradError as error:
            raise type(error)(error.message, code=error.code, param="adapters") from None
        seen: set[str] = set()
        for index, target in enumerate(targets):
            if not target.generation:
                raise InvalidRequest(
                    f"adapters[{index}].name: an adapter, got the base, {shown(target.name)}",
                    code="combination_base",
                    param="adapters",
                )
            if target.name in seen:
                raise twice(index, wanted[index].name)
            seen.add(target.name)
        return [Term(target.name, target.generation, part.weight) for target, part in zip(targets, wanted, strict=True)]

    def _begin(self, terms: list[Term]) -> _Copy:
        if (gone := self._copies.make_room(self._is_idle)) is not None and gone.info is not None:
            self._spawn(self._release(gone.info))
        copy = _Copy(generation_of(terms), {term.name: term.generation for term in terms})
        self._copies.add(copy)
        self._spawn(self._load(copy, terms))
        return copy

    async def _load(self, copy: _Copy, terms: list[Term]) -> None:
        try:
            info = await self._handle.combine_adapters(terms)
            if self._copies.has(copy):
                copy.info = info
            else:  # a part went meanwhile
                await self._release(info)
        except LoradError as error:
            self._copies.remove(copy)
            copy.error = error
        except Exception:
            log.exception("combining adapters failed")
            self._copies.remove(copy)
            copy.error = EngineFailure("the adapters could not be combined", code="adapter_load")
        finally:
            copy.ready.set()

    async def _release(self, info: AdapterInfo) -> None:
        try:
            await self._handle.release_adapter(info.generation, life=info.life)
        except LoradError as error:
            if self._handle.fault is None:
                log.error("the combination %s could not be released: %s", info.generation, error.message)

    def engine_died(self) -> None:
        """All copies have gone with the engine. Who waits for one has it made again."""
        for copy in self._copies.take_all():
            copy.ready.set()

    def _changed(self, change: Change) -> None:
        for copy in self._copies.take_stale(change.name, change.after):
            copy.ready.set()  # whoever waits looks again at once
            if copy.info is not None:
                self._spawn(self._release(copy.info))

    def _is_idle(self, copy: _Copy) -> bool:
        at_work = any(one.target.generation == copy.generation for one in self._in_flight)
        return copy.info is not None and not copy.waiting and not at_work

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
