"""`Directory`: from a key to whose it is, as the state file says, renewed when a command changes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from lorad.errors import LoradError
from lorad.tenants.file import TenantFile, key_hash
from lorad.tenants.tenant import Tenant

log = logging.getLogger("lorad.server")

LOOK_SECONDS = 0.5
"""How often the file is looked at: how long a key that was taken away still opens something, at most."""


class Holder(NamedTuple):
    """Who a key belongs to."""

    tenant: Tenant | None
    """None: an operator."""


class Directory:
    """All keys and tenants of a state file."""

    def __init__(self, file: TenantFile, on_tenants: Callable[[list[Tenant]], Awaitable[None]]) -> None:
        """`on_tenants`: told of all tenants when they were read, before a key of theirs opens anything."""
        self._file = file
        self._on_tenants = on_tenants
        self._version: object = None
        self._holders: dict[str, Holder] = {}
        self._tenants: dict[int, Tenant] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def tenants(self) -> list[Tenant]:
        """All tenants, by number."""
        return list(self._tenants.values())

    def names(self) -> dict[int, str]:
        """All tenants' names, by number."""
        return {number: tenant.name for number, tenant in self._tenants.items()}

    def find(self, key: bytes) -> Holder | None:
        """Whose key it is. What is looked up is a hash, so that the time tells nothing of other keys."""
        return self._holders.get(key_hash(key))

    async def start(self) -> None:
        """Reads the file, and looks at it from now on."""
        await self.renew()
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Looks no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def renew(self) -> None:
        """Reads the file if it has changed."""
        version = self._file.version()
        if version == self._version:
            return
        tenants = {tenant.name: tenant for tenant in self._file.tenants()}
        rows = self._file.keys()
        # Those who lose a key lose it now; those who gain one gain it when the engine knows their tenant.
        self._holders = {hash: holder for hash, holder in self._holders.items() if hash in {row.hash for row in rows}}
        await self._on_tenants(list(tenants.values()))
        self._tenants = {tenant.number: tenant for tenant in tenants.values()}
        self._holders = {
            row.hash: Holder(None if row.tenant is None else tenants[row.tenant])
            for row in rows
            if row.tenant is None or row.tenant in tenants
        }
        self._version = version

    async def _look(self) -> None:
        failed = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.renew()
                failed = False
            except LoradError as error:
                if not failed:  # once, not twice a second
                    log.error("tenants and keys stay as they were: %s", error.message)
                failed = True
