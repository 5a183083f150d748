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
        return iter([generation for some in self._by_name.values() for generation in some])

    def __len__(self) -> int:
        return sum(map(len, self._by_name.values()))

    def add(self, generation: Generation) -> None:
        """One was admitted."""
        self._by_name.setdefault(generation.target.name, set()).add(generation)

    def discard(self, generation: Generation) -> None:
        """One was answered, in whatever way."""
        some = self._by_name.get(generation.target.name, set())
        some.discard(generation)
        if not some:
            self._by_name.pop(generation.target.name, None)
        for rest, event in self._waiting:
            rest.discard(generation)
            if not rest:
                event.set()

    def of(self, name: str) -> frozenset[Generation]:
        """Those that were admitted under a name, with whatever version it had then."""
        return frozenset(self._by_name.get(name, ()))

    def still(self, some: Collection[Generation]) -> list[Generation]:
        """Those of `some` that still run."""
        return [one for one in some if one in self._by_name.get(one.target.name, ())]

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
