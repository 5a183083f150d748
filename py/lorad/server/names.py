"""`Names`: what a client's `model` means, to whom it may mean it.

A name that is somebody's own is that. Only one that nobody has may be spelt BASE:ADAPTER, and then it's the adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from lorad.errors import NotFound
from lorad.server.gate import Gate
from lorad.server.registry import Registry, Target, unknown_model
from lorad.tenants.tenant import Tenant


class Names:
    """Looks names up for requests, and waits for those whose adapters have to be brought."""

    def __init__(self, registry: Registry, gate: Gate) -> None:
        self._registry = registry
        self._gate = gate
        self.on_unknown: Callable[[str, NotFound], Coroutine[Any, Any, None]] | None = None
        """Brings an unknown name, or raises why it can't be."""
        self.is_taken: Callable[[str], bool] = lambda name: False
        """Whether a name that the registry doesn't know is somebody's all the same: on its way, or failed."""

    def now(self, tenant: Tenant, name: str) -> Target:
        """What serves this very name at this moment. NotFound if nothing does, or nothing that the tenant may use: an
        alias may stand for something else than when it was last looked at, so whoever has waited asks again."""
        if not self._registry.may_use(tenant, name):
            raise unknown_model(name)
        return self._registry.resolve(name)

    async def exact(self, tenant: Tenant, name: str) -> Target:
        """What serves this very name, brought if it has to be. NotFound if the tenant may not use it, too."""
        if not self._registry.may_use(tenant, name):
            raise unknown_model(name)
        try:
            return self._registry.resolve(name)
        except NotFound as unknown:
            if self.on_unknown is None:
                raise
            await self._gate.before(self.on_unknown(name, unknown))
        return self.now(tenant, name)

    async def meant(self, tenant: Tenant, given: str) -> str:
        """The name that a `model` means: itself, or the adapter's in BASE:ADAPTER. It can be resolved when this
        returns. Rights are those of that name."""
        adapter = self._registry.adapter_of(given)
        if adapter is None or self._registry.has(given) or self.is_taken(given):
            await self.exact(tenant, given)
            return given
        # None that comes on demand is called so: names of a registry are one part of a path, without a colon.
        try:
            await self.exact(tenant, adapter)
        except NotFound as unknown:
            raise unknown_model(given) if unknown.code == "model_not_found" else unknown from None
        return adapter
