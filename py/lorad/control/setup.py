"""From a server's options to its adapter manager."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from lorad.config import ServerConfig
from lorad.control.manager import AdapterManager
from lorad.control.on_demand import OnDemand
from lorad.engine.handle import EngineHandle
from lorad.errors import NotFound
from lorad.models.files import data_folder
from lorad.server.in_flight import InFlight
from lorad.server.registry import Registry
from lorad.sources.cache import AdapterCache
from lorad.sources.policy import SourcePolicy
from lorad.sources.registry import Registry as AdapterFolder
from lorad.store.state import StateFile

ADAPTERS = "adapters"
"""In the data folder."""


def make_manager(
    handle: EngineHandle,
    registry: Registry,
    in_flight: InFlight,
    config: ServerConfig,
    state: StateFile,
    *,
    folder: Path | None = None,
) -> AdapterManager:
    """The manager that a server's options ask for, with its adapter cache in a data folder. It closes `state`."""
    cache = AdapterCache((folder or data_folder()) / ADAPTERS, config.adapter_cache_bytes)
    return AdapterManager(handle, registry, in_flight, state, cache, source_policy(config))


def source_policy(config: ServerConfig) -> SourcePolicy:
    """Where adapters may come from. A registry that is a folder is a root of its own, the first one."""
    local = [config.adapter_registry] if is_folder(config.adapter_registry) else []
    return SourcePolicy(
        roots=tuple(Path(root).expanduser().absolute() for root in local + config.adapter_roots),
        schemes=frozenset(config.adapter_schemes),
        prefixes=tuple(config.adapter_prefixes),
        bytes_max=config.adapter_bytes_max,
        seconds_max=config.adapter_fetch_seconds,
        private_addresses=config.adapter_private_addresses,
        redirect_hosts=frozenset(config.adapter_redirect_hosts),
    )


def is_folder(registry: str) -> bool:
    """Whether a registry is a path on this machine."""
    return bool(registry) and "://" not in registry


def on_unknown(manager: AdapterManager, config: ServerConfig) -> Callable[[str, NotFound], Coroutine[Any, Any, None]]:
    """What brings adapters that a request names and that aren't there: those that were there before the start, then
    those of the registry, if the options name one."""
    on_demand = None
    if config.adapter_registry:
        prefix = "." if is_folder(config.adapter_registry) else config.adapter_registry
        adapters = AdapterFolder(prefix, source_policy(config))
        on_demand = OnDemand(manager, adapters, config.max_on_demand_adapters, now=time.monotonic)

    async def bring(name: str, unknown: NotFound) -> None:
        if await manager.bring_back(name):
            return
        if on_demand is None:
            raise unknown
        await on_demand.bring(name, unknown)

    return bring
