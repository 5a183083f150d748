"""`Ledger`: what each tenant used of each model, summed here and written to the state file every few seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from lorad.errors import LoradError
from lorad.tenants.file import TenantFile, Used, UsedRow
from lorad.tenants.sums import HOUR

log = logging.getLogger("lorad.server")

WRITE_SECONDS = 5.0
"""How much a server that is killed may have left unwritten. A stop writes all."""


class Ledger:
    """Sums that aren't written yet, and totals since the start."""

    def __init__(self, file: TenantFile, base: str, *, now: Callable[[], float]) -> None:
        """`base`: the base model's digest; `now` gives seconds since 1970."""
        self._file = file
        self._base = base
        self._now = now
        self._sums: dict[tuple[str, str, int], Used] = {}
        self._writing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self.totals: dict[tuple[str, str], Used] = {}
        """Since the start, by tenant and model."""

    def add(self, tenant: str, model: str, used: Used) -> None:
        """Something was used just now."""
        key = (tenant, model, int(self._now() // HOUR))
        self._sums[key] = self._sums.get(key, Used()).plus(used)
        self.totals[tenant, model] = self.totals.get((tenant, model), Used()).plus(used)

    def start(self) -> None:
        """Writes every few seconds from now on."""
        self._writing = asyncio.create_task(self._write_on())

    async def stop(self) -> None:
        """Writes what is left."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await self.write()  # after one that has begun

    async def write(self) -> None:
        """Writes what isn't written yet. What can't be written is kept for the next time."""
        await asyncio.shield(self._write_in_turn())

    async def rows(self, since_hour: int) -> list[UsedRow]:
        """The ledger from an hour on, with what was used until now, as far as that can be written."""
        return await asyncio.shield(self._rows_in_turn(since_hour))

    # What has begun is finished, though whoever asked for it may leave: else what a thread is at would be lost, and the
    # file, which is one thread's at a time, be the next one's already.

    async def _write_in_turn(self) -> None:
        async with self._turn:
            await self._write()

    async def _rows_in_turn(self, since_hour: int) -> list[UsedRow]:
        async with self._turn:
            await self._write()
            return await asyncio.to_thread(self._file.usage, since_hour)

    async def _write(self) -> None:
        sums, self._sums = self._sums, {}
        if not sums:
            return
        rows = [UsedRow(self._base, tenant, model, hour, used) for (tenant, model, hour), used in sums.items()]
        try:
            await asyncio.to_thread(self._file.add_usage, rows)
        except LoradError as error:
            log.error("usage isn't written yet: %s", error.message)
            for key, used in sums.items():
                self._sums[key] = self._sums.get(key, Used()).plus(used)

    async def _write_on(self) -> None:
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            await self.write()
