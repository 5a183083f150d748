"""`Bring`: from a source to a name in force.

Content in the cache → read, checked and registered by the engine → written down as in force → the name switched to it
in one go → what it meant before drains. A failure leaves all as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from lorad.control.background import Background
from lorad.control.fetches import Fetches, place_of
from lorad.control.operation import Operation
from lorad.control.rates import Rate
from lorad.control.record import Awaited, Record, Source
from lorad.engine.handle import EngineHandle
from lorad.engine.messages import AdapterInfo
from lorad.errors import Conflict, LoradError, NotFound, Unavailable
from lorad.server.registry import Registry
from lorad.sources.cache import AdapterCache, Entry
from lorad.sources.policy import SourcePolicy
from lorad.sources.source import parse_source
from lorad.store.thread import StateThread

T = TypeVar("T")

CACHE = "the adapter cache"
"""The place of what is looked for there; no source's."""


class Bring:
    """Whoever calls it has the name's turn."""

    def __init__(
        self,
        handle: EngineHandle,
        registry: Registry,
        state: StateThread,
        cache: AdapterCache,
        policy: SourcePolicy,
        background: Background,
    ) -> None:
        self._handle = handle
        self._registry = registry
        self._state = state
        self._cache = cache
        self._policy = policy
        self._background = background
        self._check_rate = Rate()
        self._fetch_rate = Rate()
        self._fetches = Fetches()

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Seconds for a byte of an adapter's files: to check and register it, and to fetch it; None: not measured."""
        return self._check_rate.each, self._fetch_rate.each

    async def bring(
        self,
        record: Record,
        operation: Operation,
        source: str,
        digest: str,
        *,
        pin: bool,
        kept: bool,
    ) -> dict[str, Any]:
        """From a source to a name in force. `kept`: the state file hears of it."""
        entry = await self._fetch(record.name, operation, source, digest)
        try:
            info = await self._check(operation, record.name, entry)
            try:
                if operation.cancelled:
                    raise load_cancelled(record.name)
                if kept:
                    await self._state.do(lambda state: state.keep(record.name, source, entry.digest, info.generation))
                    record.kept = True
                if operation.cancelled:  # meanwhile; the unload that did it removes the row
                    raise load_cancelled(record.name)
                if not self._lives(info):  # it's in force by what is written
                    self.await_again(record, (Source(source, entry.digest, pin, new=False),), info.generation)
                    raise Unavailable("the engine has died meanwhile", code="engine_gone")
            except LoradError:
                # Not waited for: where another name had this content and was unloaded, its requests end first.
                self._background.spawn(self._let_go(info))
                raise
        except BaseException:
            self._cache.release(entry.digest)
            raise
        result: dict[str, Any] = {
            "changed": record.info is None or record.info.generation != info.generation,
            "generation": info.generation,
        }
        if info.warnings:
            result["warnings"] = list(info.warnings)
        before, before_digest, was_pinned = self._switch(record, source, entry.digest, info)
        record.kept, record.on_demand = kept or record.kept, not kept and not record.kept
        if before is not None:
            if was_pinned and pin and self._lives(before):  # its place is the new one's
                with contextlib.suppress(LoradError):
                    await self._handle.pin_adapter(before.generation, False)
                    was_pinned = False
            self._background.spawn(self.forget(before, before_digest, pinned=was_pinned))
        if pin:
            try:
                await self.pin(record, True)
            except LoradError as error:
                result.setdefault("warnings", []).append(f"it isn't pinned: {error.message}")
                if kept and self._handle.fault is None:  # else the next engine is asked for it
                    await self._state.do(lambda state: state.pin(record.name, False))
        return result

    async def _fetch(self, name: str, operation: Operation, source: str, digest: str) -> Entry:
        operation.at("fetching")
        began = asyncio.get_running_loop().time()

        def progress(done: int, total: int) -> None:
            operation.progress(done, total)
            operation.estimate_seconds = self._fetch_rate.seconds(total - done)

        def find(given_up: Callable[[], bool]) -> Entry | None:
            self._cache.verify(digest)  # it may have been damaged on the disk meanwhile
            return self._cache.hold(digest)

        def release(entry: Entry | None) -> None:
            if entry is not None:
                self._cache.release(entry.digest)

        async def fetch() -> Entry:
            seconds = self._policy.seconds_max
            # What is here needs no source: it may be gone, hang, or not be allowed any more.
            if digest and (entry := await self._fetches.run(CACHE, source, find, seconds, release)) is not None:
                return entry
            parsed = parse_source(source, self._policy)

            def obtain(given_up: Callable[[], bool]) -> Entry:
                return self._cache.obtain(
                    parsed,
                    digest=digest or None,
                    on_progress=progress,
                    cancelled=lambda: operation.cancelled or given_up(),
                    hold=True,
                )

            return await self._fetches.run(place_of(parsed), parsed.text, obtain, seconds, release)

        async def let_go(entry: Entry) -> None:
            release(entry)

        entry = await self._unless_cancelled(name, operation, fetch(), let_go)
        self._fetch_rate.saw(entry.bytes, asyncio.get_running_loop().time() - began)
        return entry

    async def _check(self, operation: Operation, name: str, entry: Entry) -> AdapterInfo:
        operation.at("checking", self._check_rate.seconds(entry.bytes))
        began = asyncio.get_running_loop().time()

        work = self._handle.load_adapter(name, str(entry.path))
        info = await self._unless_cancelled(name, operation, work, self._let_go)
        self._check_rate.saw(entry.bytes, asyncio.get_running_loop().time() - began)
        return info

    async def _let_go(self, info: AdapterInfo) -> None:
        """What came to nothing is registered no longer. Why that fails, nobody is left to hear."""
        with contextlib.suppress(LoradError):
            await self._handle.release_adapter(info.generation, life=info.life)

    async def _unless_cancelled(
        self, name: str, operation: Operation, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]]
    ) -> T:
        """What `work` gives. An unload doesn't wait for it, be it a disk that hangs: then it's undone when it comes."""
        task = self._background.spawn(work)
        if await operation.unless_cancelled(task):
            return await task

        async def undone() -> None:
            with contextlib.suppress(Exception):  # why it failed, nobody wants to know any more
                await undo(await task)

        self._background.spawn(undone())
        raise load_cancelled(name)

    def _switch(
        self, record: Record, source: str, digest: str, info: AdapterInfo
    ) -> tuple[AdapterInfo | None, str, bool]:
        """From here on the name means this. Gives what it meant before, its digest, and whether that is pinned."""
        self._registry.publish(info)
        self._registry.use(record.name)
        before = record.info, record.digest, record.pinned
        record.source, record.digest, record.info, record.failure = source, digest, info, None
        record.pinned = False
        record.awaited = None  # the engine may have died while this was fetched: what it had is older
        return before

    def await_again(self, record: Record, sources: tuple[Source, ...], generation: str) -> None:
        """A name whose adapter isn't there, or has gone with its engine, is to be brought back."""
        newest = sources[0]
        if record.info is not None:
            self._registry.suspend(record.name)
            if record.digest:
                self._cache.release(record.digest)
        else:
            self._registry.announce(record.name, generation)
        record.info, record.awaited = None, Awaited(sources)
        record.source, record.digest, record.pinned = newest.text, newest.digest, newest.pinned

    def drop(self, record: Record) -> None:
        """A name has gone with its engine."""
        self._registry.withdraw(record.name)
        if record.digest:
            self._cache.release(record.digest)
        record.info, record.digest, record.on_demand = None, "", False

    async def forget(self, info: AdapterInfo, digest: str, *, pinned: bool) -> None:
        try:
            await self._handle.release_adapter(info.generation, pinned=pinned, life=info.life)
        finally:
            if digest:
                self._cache.release(digest)

    async def pin(self, record: Record, pinned: bool) -> None:
        info = record.info
        if info is None:
            return
        if not self._lives(info):  # the next engine may have this content under another name, and its pin
            raise Unavailable("the engine has died meanwhile", code="engine_gone")
        await self._handle.pin_adapter(info.generation, pinned)
        if record.info is info:
            record.pinned = pinned
            await self._state.do(lambda state: state.pin(record.name, pinned))
        elif pinned:
            # It was unloaded meanwhile, by somebody who didn't know of the pin. Another name may hold the same content.
            with contextlib.suppress(NotFound):
                await self._handle.pin_adapter(info.generation, False)

    def _lives(self, info: AdapterInfo) -> bool:
        """Whether the engine that has it isn't gone."""
        return info.life == self._handle.life

    def close(self) -> None:
        """Begins no fetch any more."""
        self._fetches.close()


def load_cancelled(name: str) -> LoradError:
    """An unload came while it was under way."""
    return Conflict(f"the load of {name!r} was ended by an unload", code="load_cancelled")
