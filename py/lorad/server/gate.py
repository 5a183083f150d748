"""How much is taken in: a bound on what is in flight, and the way to an orderly stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from lorad.errors import InvalidRequest, Overloaded, Unavailable


class Gate:
    """Counts sequences (one choice of one prompt) from the moment their request is decoded until it's answered."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._narrowed: int | None = None
        self.inside = 0
        self._draining = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def draining(self) -> bool:
        """Whether nobody is let in any more."""
        return self._draining.is_set()

    def drain(self) -> None:
        """From now on nobody is."""
        self._draining.set()

    def narrow(self, limit: int | None) -> None:
        """For a while no more are let in than this, but for a request that comes alone; None: as many as ever."""
        self._narrowed = limit

    async def before(self, work: Coroutine[Any, Any, None]) -> None:
        """What somebody waits for who isn't inside yet; ends with a refusal when nobody is let in any more."""
        working, draining = asyncio.create_task(work), asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({working, draining}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise _stopping()
            working.result()
        finally:
            working.cancel()
            draining.cancel()

    @contextmanager
    def passing(self, count: int) -> Iterator[None]:
        """Lets `count` sequences in for the time of the block, or refuses them at once."""
        if self.draining:
            raise _stopping()
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
        if self._narrowed is not None and self.inside > 0 and self.inside + count > self._narrowed:
            raise Overloaded(
                f"memory is short, so nobody may wait: {self.inside} in flight, {count} asked for, limit "
                f"{self._narrowed}",
                code="memory_low",
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


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping", code="draining")
