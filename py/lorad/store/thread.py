"""`StateThread`: a state file as the event loop uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lorad.store.state import StateFile

T = TypeVar("T")


class StateThread:
    """One thread: the file's changes have an order, and SQLite's connection one user."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lorad-state")

    async def do(self, change: Callable[[StateFile], T]) -> T:
        """Reads or changes the file; what comes later waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, change, self._file)

    def close(self) -> None:
        """Closes the file when what was begun is done."""
        self._thread.shutdown(wait=True)
        self._file.close()
