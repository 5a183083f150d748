"""`InFlight`: the requests that run, and a way to wait until those of one adapter version have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from lorad.server.generation import Generation

Key = tuple[str, str]
"""Name and generation."""


class InFlight:
    """All generations that were admitted and not yet answered."""

    def __init__(self) -> None:
        self._by_key: dict[Key, set[Generation]] = {}
        self._waiting: dict[Key, asyncio.Event] = {}

    def __iter__(self) -> Iterator[Generation]:
        return iter([generation for some in self._by_key.values() for generation in some])

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def add(self, generation: Generation) -> None:
        """One was admitted."""
        self._by_key.setdefault(_key(generation), set()).add(generation)

    def discard(self, generation: Generation) -> None:
        """One was answered, in whatever way."""
        key = _key(generation)
        some = self._by_key.get(key)
        if some is None:
            return
        some.discard(generation)
        if not some:
            del self._by_key[key]
            if (event := self._waiting.pop(key, None)) is not None:
                event.set()

    def of(self, name: str, version: str) -> list[Generation]:
        """Those that were admitted under a name with this version."""
        return list(self._by_key.get((name, version), ()))

    async def drained(self, name: str, version: str) -> None:
        """Waits until there are none of those."""
        while (name, version) in self._by_key:
            await self._waiting.setdefault((name, version), asyncio.Event()).wait()


def _key(generation: Generation) -> Key:
    return generation.target.name, generation.target.generation
