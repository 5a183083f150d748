"""`Revival`: the engine is started again when it has died, and told what it knew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lorad.engine.client import ProcessEngine
from lorad.errors import LoradError

log = logging.getLogger("lorad.server")

PAUSE_SECONDS = 1.0
"""Before the second attempt in a row; twice as long before each further one."""
PAUSE_SECONDS_MAX = 30.0
WELL_SECONDS = 60.0
"""An engine that has run for so long begins a new row of attempts."""


class Revival:
    """Lives on the event loop. What ran when the engine died was answered with an error, and isn't tried again: a
    request that brings an engine down must not come back."""

    def __init__(
        self,
        engine: ProcessEngine,
        resume: Callable[[], Awaitable[None]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`resume`: tells a fresh engine what it must know, before it takes requests."""
        self._sleep = sleep
        self._engine = engine
        self._resume = resume
        self._attempts = 0
        self._started_at = -WELL_SECONDS
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The engine has died."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._revive())

    async def stop(self) -> None:
        """No more attempts."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _revive(self) -> None:
        clock = asyncio.get_running_loop().time
        if clock() - self._started_at >= WELL_SECONDS:
            self._attempts = 0
        while True:
            if self._attempts:
                await self._sleep(min(PAUSE_SECONDS * 2 ** (self._attempts - 1), PAUSE_SECONDS_MAX))
            self._attempts += 1
            try:
                await self._engine.restart()
                self._started_at = clock()
                await self._resume()
                self._engine.resume()
            except LoradError as error:
                log.error("the engine couldn't be started again: %s", error.message)
            except Exception:
                log.exception("the engine couldn't be started again")
            else:
                log.warning("the engine was started again and takes requests")
                return
