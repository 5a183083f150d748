"""How much is taken in: a bound on what is in flight, and the way to an orderly stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from lorad.errors import InvalidRequest, Overloaded, Unavailable


class Gate:
    """Counts sequences (one choice of one prompt) from the moment their request is decoded until it's answered."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self.draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def passing(self, count: int) -> Iterator[None]:
        """Lets `count` sequences in for the time of the block, or refuses them at once."""
        if self.draining:
            raise Unavailable("the server is stopping", code="draining")
        if count > self.limit:
            raise InvalidRequest(
                f"n: {count} answers (prompts × n), at most {self.limit} can ever wait and run here",
                code="field_range",
                param="n",
            )
        if self.inside + count > self.limit:
            raise Overloaded(
                f"the queue is full: {self.inside} in flight, {count} asked for, limit {self.limit}", code="queue_full"
            )
        self.inside += count
        self._empty.clear()
        try:
            yield
        finally:
            self.inside -= count
            if self.inside == 0:
                self._empty.set()

    async def emptied(self) -> None:
        """Waits until nothing is in flight."""
        await self._empty.wait()
