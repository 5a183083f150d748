"""Prewarming: "these, hot, by this time", answered honestly when it can't be."""

from __future__ import annotations

import asyncio

from lorad.control.manager import AdapterManager
from lorad.control.operation import Operation
from lorad.engine.handle import EngineHandle
from lorad.engine.messages import AdapterInfo, Stats
from lorad.errors import Conflict, LoradError, Unavailable

LOOK_SECONDS = 0.02
"""How often the engine is asked how far it is."""


def prewarm(manager: AdapterManager, handle: EngineHandle, names: list[str], within_seconds: float) -> Operation:
    """Begins to page in adapters. Refused at once if they don't fit together; the operation fails if they aren't hot
    in time, telling which are."""
    wanted: list[AdapterInfo] = []
    for name in dict.fromkeys(names):
        record = manager.record(name)
        if record.info is None:
            raise Conflict(f"the adapter {name!r} isn't loaded: {record.state}", code="adapter_not_ready")
        wanted.append(record.info)
    pinned = {
        record.info.generation: record.info.pages
        for record in manager.records
        if record.info is not None and record.pinned
    }
    pages = sum((pinned | {info.generation: info.pages for info in wanted}).values())
    # A page is left for the KV of somebody who uses them.
    if pages > handle.model.pages - 1:
        raise Conflict(
            f"names: these and the pinned ones need {pages} pages together, the pool has {handle.model.pages - 1} for "
            "adapters: they can't be hot at once",
            code="prewarm_impossible",
            param="names",
        )
    operation = manager.operations.begin("prewarm", *names)
    operation.accept()
    manager.spawn(_prewarm(handle, wanted, within_seconds, operation))
    return operation


async def _prewarm(
    handle: EngineHandle, wanted: list[AdapterInfo], within_seconds: float, operation: Operation
) -> None:
    try:
        operation.at("paging_in")
        for generation in {info.generation for info in wanted}:
            await handle.prewarm_adapter(generation)
        deadline = asyncio.get_running_loop().time() + within_seconds
        while True:
            stats = await handle.stats()
            cold = [info for info in wanted if not _is_hot(stats, info)]
            operation.progress(len(wanted) - len(cold), len(wanted))
            operation.estimate_seconds = _seconds(stats, cold)
            if not cold:
                operation.end()
                return
            if asyncio.get_running_loop().time() >= deadline:
                names = ", ".join(info.name for info in cold)
                error = Unavailable(
                    f"not hot after {within_seconds:g} s: {names}; they follow when there is room that nobody uses",
                    code="prewarm_late",
                )
                operation.end(error, hot=[info.name for info in wanted if info not in cold])
                return
            await asyncio.sleep(LOOK_SECONDS)
    except LoradError as error:
        operation.end(error)


def _is_hot(stats: Stats, info: AdapterInfo) -> bool:
    known = stats.adapters.get(info.generation)
    return known is not None and known.state == "hot"


def _seconds(stats: Stats, cold: list[AdapterInfo]) -> float | None:
    """By what paging in took so far; None: nothing was paged in yet."""
    if not stats.page_in_bytes:
        return None
    return round(sum(info.bytes for info in cold) * stats.page_in_seconds / stats.page_in_bytes, 4)
