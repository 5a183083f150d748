"""A server's tenants: the directory that its keys are looked up in, and the ledger that usage is written to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lorad.engine.handle import EngineHandle
from lorad.tenants.directory import Directory
from lorad.tenants.file import TenantFile, UsedRow
from lorad.tenants.ledger import Ledger
from lorad.tenants.limits import TenantLimits
from lorad.tenants.sums import first_hour
from lorad.tenants.tenant import Tenant

USUAL = Tenant("usual", 0)
"""As one that nothing was set of."""


class Tenancy:
    """`start` it before the first request, `stop` it after the last."""

    def __init__(self, path: Path, handle: EngineHandle, *, now: Callable[[], float] = time.time) -> None:
        """`path`: the state file."""
        self._handle, self._now = handle, now
        # One for the loop that reads, one for the thread that writes.
        self._read, self._written = TenantFile(path), TenantFile(path)
        self.directory = Directory(self._read, self._tell)
        self.ledger = Ledger(self._written, handle.model.digest, now=now)
        self.limits: TenantLimits | None = None
        self._told: dict[int, Tenant] = {}

    async def start(self, limits: TenantLimits) -> None:
        """Reads the file and follows it from now on."""
        self.limits = limits
        await self.directory.start()
        self.ledger.start()

    async def engine_died(self) -> None:
        """A fresh engine knows no tenants."""
        self._told.clear()
        await self._tell(self.directory.tenants)

    async def rows(self, hours: int | None) -> list[UsedRow]:
        """The ledger of the last so many hours (None: all of it), with what was used until now."""
        return await self.ledger.rows(first_hour(self._now(), hours))

    async def stop(self) -> None:
        """Writes what was used; keys open nothing new from now on."""
        await self.directory.stop()
        await self.ledger.stop()
        self._read.close()
        self._written.close()

    async def _tell(self, tenants: list[Tenant]) -> None:
        """The engine's part of the limits, of those that have changed."""
        assert self.limits is not None
        for tenant in tenants:
            if self._told.get(tenant.number) == tenant:
                continue
            await self._handle.set_tenant(tenant.number, **_share(tenant))
            self._told[tenant.number] = tenant
        numbers = {tenant.number for tenant in tenants}
        for number in self._told.keys() - numbers:
            # One without a share of its own is forgotten when the core's table is full: numbers have no end, it has.
            if _share(self._told[number]) != _share(USUAL):
                await self._handle.set_tenant(number, **_share(USUAL))
            del self._told[number]
        self.limits.keep(numbers)


def _share(tenant: Tenant) -> dict[str, int]:
    """The engine's part of a tenant."""
    limits = tenant.limits
    return {
        "weight": tenant.weight,
        "running_max": limits.running_max,
        "waiting_max": limits.waiting_max,
        "pages_max": limits.pages_max,
    }
