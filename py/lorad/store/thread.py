"""`StateThread`: a state file as the event loop uses it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lorad.errors import LoradError
from lorad.store.state import StateFile

log = logging.getLogger("lorad.server")

LOOK_SECONDS = 5.0
"""How often the file is looked for while nothing changes: who deletes it and kills the server should lose nothing."""

T = TypeVar("T")


class StateThread:
    """One thread: the file's changes have an order, and SQLite's connection one user."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lorad-state")
        self._watching: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Begins to look now and then whether the file is still there."""
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.do(StateFile.look)
                told = ""
            except LoradError as error:
                if error.message != told:
                    log.error("%s; changes are refused until then", error.message)
                told = error.message

    async def do(self, change: Callable[[StateFile], T]) -> T:
        """Reads or changes the file; what comes later waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, change, self._file)

    def close(self) -> None:
        """Closes the file when what was begun is done."""
        if self._watching is not None:
            self._watching.cancel()
        self._thread.shutdown(wait=True)
        self._file.close()
