"""`InFlight`: the requests that run, and a way to wait until some of them have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from lorad.server.generation import Generation


class InFlight:
    """All generations that were admitted and not yet answered."""

    def __init__(self) -> None:
        self._by_name: dict[str, set[Generation]] = {}
        self._waiting: list[tuple[set[Generation], asyncio.Event]] = []

    def __iter__(self) -> Iterator[Generation]:
        return iter(set().union(*self._by_name.values()))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, generation: Generation) -> None:
        """One was admitted."""
        for name in generation.target.adapters:
            self._by_name.setdefault(name, set()).add(generation)

    def discard(self, generation: Generation) -> None:
        """One was answered, in whatever way."""
        for name in generation.target.adapters:
            some = self._by_name.get(name, set())
            some.discard(generation)
            if not some:
                self._by_name.pop(name, None)
        for rest, event in self._waiting:
            rest.discard(generation)
            if not rest:
                event.set()

    def of(self, name: str) -> frozenset[Generation]:
        """Those that were admitted under a name, alone or with others, with whatever version it had then."""
        return frozenset(self._by_name.get(name, ()))

    def still(self, some: Collection[Generation]) -> list[Generation]:
        """Those of `some` that still run."""
        return [one for one in some if one in self._by_name.get(one.target.adapters[0], ())]

    async def ended(self, some: Collection[Generation]) -> None:
        """Waits until all of `some` have ended; others don't matter, whoever they are of."""
        rest = set(self.still(some))
        if not rest:
            return
        waiting = rest, asyncio.Event()
        self._waiting.append(waiting)
        try:
            await waiting[1].wait()
        finally:
            self._waiting.remove(waiting)
