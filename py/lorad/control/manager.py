"""`AdapterManager`: which names a running server has. Loads, reloads and unloads by turns of a name, pins, aliases.

A load: written down as asked for → content in the cache → read, checked and registered by the engine → written down as
in force → the name switched to it in one go → what it meant before drains. A failure leaves all as it was.
An unload: the name taken away → written down → drained, within a time if one was given → forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from lorad.adapters.name import NAME_LENGTH_MAX
from lorad.control.operation import Operation, Operations
from lorad.control.rates import Rate
from lorad.control.record import Load, Record
from lorad.engine.handle import EngineHandle
from lorad.engine.messages import AdapterInfo
from lorad.errors import Conflict, EngineFailure, InvalidRequest, LoradError, NotFound, Unavailable
from lorad.server.generation import Generation
from lorad.server.in_flight import InFlight
from lorad.server.registry import Registry
from lorad.sources.cache import AdapterCache, Entry
from lorad.sources.policy import SourcePolicy
from lorad.sources.source import parse_source
from lorad.store.state import StateFile

log = logging.getLogger("lorad.server")

FETCHES_MAX = 4
"""Sources that are read at once."""

T = TypeVar("T")


class AdapterManager:
    """Lives on the event loop; whatever blocks is on threads."""

    def __init__(
        self,
        handle: EngineHandle,
        registry: Registry,
        in_flight: InFlight,
        state: StateFile,
        cache: AdapterCache,
        policy: SourcePolicy,
    ) -> None:
        self.registry = registry
        self.operations = Operations()
        self._handle = handle
        self._in_flight = in_flight
        self._state = state
        self._cache = cache
        self._policy = policy
        self._records: dict[str, Record] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._check_rate = Rate()
        self._fetch_rate = Rate()
        self._fetches = ThreadPoolExecutor(FETCHES_MAX, thread_name_prefix="lorad-fetch")
        # One thread: the state file's changes have an order, and SQLite's connection one user.
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="lorad-state")

    # what is there

    @property
    def records(self) -> list[Record]:
        """All names, those too that couldn't be brought back."""
        return [record for record in self._records.values() if record.exists]

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._tasks)

    def record(self, name: str) -> Record:
        """What is known of a name; an alias has none of its own."""
        record = self.find(name)
        if record is None:
            raise NotFound(f"The adapter {name[:NAME_LENGTH_MAX]!r} does not exist", code="adapter_not_found")
        return record

    def running(self, record: Record) -> int:
        """Requests under a name that are at work."""
        return len(self._in_flight.of(record.name))

    def find(self, name: str) -> Record | None:
        """What is known of a name, if anything."""
        record = self._records.get(name)
        return record if record is not None and record.exists else None

    def adopt(self, name: str, source: str, info: AdapterInfo) -> None:
        """Takes over an adapter that was loaded by an option of the start, which the state file doesn't know."""
        record = self._records.setdefault(name, Record(name))
        record.source, record.info, record.failure = source, info, None

    # loading

    def load(
        self,
        name: str,
        source: str,
        *,
        reload: bool = False,
        digest: str = "",
        pinned: bool = False,
        on_demand: bool = False,
    ) -> Operation:
        """Begins to load `source` under `name`. What is under way or in force already isn't begun again.

        `reload`: replace what is in force, even by the same source; without it another source is a Conflict.
        `digest`: what the content must be. `on_demand`: a restart doesn't bring it back.
        """
        self.registry.check_name(name)
        parse_source(source, self._policy)
        record = self._records.get(name) or Record(name)
        load = Load(source, digest, reload=reload, pinned=pinned, on_demand=on_demand)
        if (running := record.loading) is not None:
            # One that reads already may have read what the caller wants to have replaced.
            if record.loads[-1][1] == load and not (reload and running.stage != "waiting"):
                return running
        elif not reload and record.info is not None:
            self._check_same(record, load)
        self._records[name] = record
        kind = "load" if record.info is None else "reload"
        operation = self.operations.begin(kind, name, listed=not on_demand)
        record.loads.append((operation, load))
        record.users += 1
        self.spawn(self._load(record, operation, load))
        return operation

    def _check_same(self, record: Record, load: Load) -> None:
        """Whether what is in force is what a load wants."""
        if record.source != load.source or load.digest not in ("", record.digest):
            what = "another source" if record.source != load.source else "other content of this source"
            raise Conflict(
                f"the adapter {record.name!r} is loaded from {what}; to replace it, ask for a reload",
                code="adapter_exists",
                param="reload",
            )

    async def _load(self, record: Record, operation: Operation, load: Load) -> None:
        try:
            async with record.lock:
                if operation.cancelled:
                    raise _cancelled(record.name)
                if not load.reload and record.info is not None:
                    self._check_same(record, load)
                    operation.end(changed=False, **await self._confirm(record, load))
                    return
                operation.end(**await self._bring_kept(record, operation, load))
        except LoradError as error:
            operation.end(_cancelled(record.name) if operation.cancelled else error)
        except Exception:
            log.exception("loading adapter %r failed", record.name)
            operation.end(EngineFailure("the adapter could not be loaded", code="adapter_load"))
        finally:
            record.loads.remove((operation, load))
            self._leave(record)

    async def _confirm(self, record: Record, load: Load) -> dict[str, Any]:
        """What is in force was asked for again: it's kept from now on, and pinned if that was wanted."""
        if not load.on_demand and not record.kept:
            await self._keep(record, pinned=record.pinned)
        if load.pinned and not record.pinned:
            try:
                await self._pin(record, True)
            except LoradError as error:
                return {"warnings": [f"it isn't pinned: {error.message}"]}
        return {}

    async def _keep(self, record: Record, *, pinned: bool) -> None:
        """Has the state file know what is in force."""
        info, source, digest = record.info, record.source, record.digest
        if info is not None:
            await self._write(lambda: self._state.want(record.name, source, digest, pinned=pinned))
            await self._write(lambda: self._state.keep(record.name, source, digest, info.generation))
            record.kept, record.on_demand = True, False

    async def _bring_kept(self, record: Record, operation: Operation, load: Load) -> dict[str, Any]:
        """A load with its two entries in the state file: asked for, and in force."""
        pin, failed = record.pinned or load.pinned, record.failure is not None
        kept = not load.on_demand
        if kept:
            await self._write(lambda: self._state.want(record.name, load.source, load.digest, pinned=pin))
        operation.accept()
        try:
            return await self._bring(record, operation, load.source, load.digest, pin=pin, kept=kept)
        except LoradError:
            # What the engine's death ended is still asked for.
            if kept and self._handle.fault is None:
                if failed and not operation.cancelled:  # what couldn't be brought back is still asked for, too
                    was = record.source
                    await self._write(lambda: self._state.want(record.name, was, "", pinned=pin))
                else:
                    await self._write(lambda: self._state.give_up(record.name))
            raise

    async def _bring(
        self, record: Record, operation: Operation, source: str, digest: str, *, pin: bool, kept: bool
    ) -> dict[str, Any]:
        """From a source to a name in force."""
        entry = await self._fetch(operation, source, digest)
        try:
            info = await self._check(operation, record.name, entry)
            try:
                if operation.cancelled:
                    raise _cancelled(record.name)
                if kept:
                    await self._write(lambda: self._state.keep(record.name, source, entry.digest, info.generation))
                if operation.cancelled:  # meanwhile; the unload that did it removes the row
                    raise _cancelled(record.name)
            except LoradError:
                await self._handle.release_adapter(info.generation)
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
            if was_pinned and pin:  # its place is the new one's
                with contextlib.suppress(LoradError):
                    await self._handle.pin_adapter(before.generation, False)
                    was_pinned = False
            self.spawn(self._forget(before.generation, before_digest, pinned=was_pinned))
        if pin:
            try:
                await self._pin(record, True)
            except LoradError as error:
                result.setdefault("warnings", []).append(f"it isn't pinned: {error.message}")
                await self._write(lambda: self._state.pin(record.name, False))
        return result

    async def _fetch(self, operation: Operation, source: str, digest: str) -> Entry:
        operation.at("fetching")
        began = asyncio.get_running_loop().time()

        def progress(done: int, total: int) -> None:
            operation.progress(done, total)
            operation.estimate_seconds = self._fetch_rate.seconds(total - done)

        def fetch() -> Entry:
            # What is here needs no source: it may be gone, or not be allowed any more.
            if digest and (entry := self._cache.hold(digest)) is not None:
                return entry
            parsed = parse_source(source, self._policy)
            return self._cache.obtain(
                parsed, digest=digest or None, on_progress=progress, cancelled=lambda: operation.cancelled, hold=True
            )

        entry = await asyncio.get_running_loop().run_in_executor(self._fetches, fetch)
        self._fetch_rate.saw(entry.bytes, asyncio.get_running_loop().time() - began)
        return entry

    async def _check(self, operation: Operation, name: str, entry: Entry) -> AdapterInfo:
        operation.at("checking", self._check_rate.seconds(entry.bytes))
        began = asyncio.get_running_loop().time()
        info = await self._handle.load_adapter(name, str(entry.path))
        self._check_rate.saw(entry.bytes, asyncio.get_running_loop().time() - began)
        return info

    def _switch(
        self, record: Record, source: str, digest: str, info: AdapterInfo
    ) -> tuple[AdapterInfo | None, str, bool]:
        """From here on the name means this. Gives what it meant before, its digest, and whether that is pinned."""
        self.registry.publish(info)
        self.registry.use(record.name)
        before = record.info, record.digest, record.pinned
        record.source, record.digest, record.info, record.failure = source, digest, info, None
        record.pinned = False
        return before

    async def _forget(self, generation: str, digest: str, *, pinned: bool) -> None:
        try:
            await self._handle.release_adapter(generation, pinned=pinned)
        finally:
            if digest:
                self._cache.release(digest)

    # unloading

    def unload(self, name: str, *, within_seconds: float | None = None, listed: bool = True) -> Operation:
        """Takes the name away at once. Its requests end on what they were admitted with: in their own time, or within
        `within_seconds` and then with an error (0: at once)."""
        record = self.record(name)
        operation = self.operations.begin("unload", name, listed=listed)
        for load, _ in record.loads:
            load.cancelled = True
        was = replace(record)
        record.info, record.digest, record.pinned, record.failure = None, "", False, None
        if was.info is not None:
            self.registry.withdraw(name)
        record.users += 1
        self.spawn(self._unload(record, operation, was, self._in_flight.of(name), within_seconds))
        return operation

    async def _unload(
        self,
        record: Record,
        operation: Operation,
        was: Record,
        running: frozenset[Generation],
        within_seconds: float | None,
    ) -> None:
        """`was`: what the name was before; `running`: its requests."""
        try:
            # From now on, not from when the loads before it have ended.
            ending = self.spawn(self._end(running, within_seconds))
            async with record.lock:
                try:
                    await self._write(lambda: self._state.remove(record.name))
                except LoradError:
                    ending.cancel()
                    self._put_back(record, was)
                    raise
                record.kept = record.on_demand = False
            operation.accept()
            operation.at("draining")
            count = len(running)
            operation.track(lambda: (count - len(self._in_flight.still(running)), count))
            if was.info is not None:
                await asyncio.gather(ending, self._forget(was.info.generation, was.digest, pinned=was.pinned))
            await ending
            operation.end()
        except LoradError as error:
            operation.end(error)
        except Exception:
            log.exception("unloading adapter %r failed", record.name)
            operation.end(EngineFailure("the adapter could not be unloaded", code="adapter_unload"))
        finally:
            self._leave(record)

    def _put_back(self, record: Record, was: Record) -> None:
        """An unload that can't be written down leaves all as it was."""
        if record.info is None:
            record.info, record.digest, record.pinned, record.failure = was.info, was.digest, was.pinned, was.failure
            if was.info is not None:
                self.registry.publish(was.info)

    async def _end(self, running: frozenset[Generation], within_seconds: float | None) -> None:
        """Waits for requests; after a time they end with an error."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._in_flight.ended(running)
        except TimeoutError:
            error = Unavailable("the adapter was unloaded before the answer was complete", code="adapter_unloaded")
            for generation in self._in_flight.still(running):
                generation.fail(error)
            await self._in_flight.ended(running)

    # pins and aliases

    async def pin(self, name: str, pinned: bool) -> Record:
        """Keeps a name's adapter in pages, or no longer; so does a reload of it. Refused where pins have no room."""
        return await self._whole(self._pin_in_turn(self.record(name), pinned))

    async def _pin_in_turn(self, record: Record, pinned: bool) -> Record:
        async with record.lock:
            if record.info is None:
                raise Conflict(f"the adapter {record.name!r} isn't loaded: {record.state}", code="adapter_not_ready")
            if pinned and record.on_demand:  # an operator wants it to stay
                await self._keep(record, pinned=record.pinned)
            if record.pinned != pinned:
                await self._pin(record, pinned)
        return record

    async def _pin(self, record: Record, pinned: bool) -> None:
        info = record.info
        if info is None:
            return
        await self._handle.pin_adapter(info.generation, pinned)
        if record.info is info:
            record.pinned = pinned
            await self._write(lambda: self._state.pin(record.name, pinned))
        elif pinned:
            # It was unloaded meanwhile, by somebody who didn't know of the pin. Another name may hold the same content.
            with contextlib.suppress(NotFound):
                await self._handle.pin_adapter(info.generation, False)

    async def set_alias(self, alias: str, target: str) -> None:
        """Lets `alias` stand for the adapter `target`."""
        self.record(target)
        if alias in self._records:
            raise InvalidRequest(f"{alias!r} is an adapter's name", code="adapter_name", param="alias")
        self.registry.set_alias(alias, target)
        await self._whole(self._write(lambda: self._state.alias(alias, target)))

    async def remove_alias(self, alias: str) -> None:
        """Takes an alias away."""
        self.registry.remove_alias(alias)
        await self._whole(self._write(lambda: self._state.remove_alias(alias)))

    # start and end

    async def restore(
        self,
        on_name: Callable[[str, int, int], None] = lambda name, done, total: None,
        taken: Collection[str] = (),
    ) -> None:
        """Brings back what was asked for: the content that was in force, or a newer one whose load was under way.

        Calls `on_name` for each. One that can't be brought back is listed as failed, with the reason. `taken`: names
        that options of the start have, which aliases make way for.
        """
        rows = await self._write(self._state.adapters)
        for number, row in enumerate(rows):
            on_name(row.name, number, len(rows))
            record = self._records.setdefault(row.name, Record(row.name, kept=True))
            operation = self.operations.begin("restore", row.name)
            sources = [(row.wanted_source, row.wanted_digest, row.wanted_pinned)] if row.wanted_source else []
            sources += [(row.source, row.digest, row.pinned)] if row.source else []
            failures: list[LoradError] = []
            for source, digest, pinned in sources:
                try:
                    self.registry.check_name(row.name)
                    if failures:  # the newer one can't be had: what was in force is wanted again
                        await self._write(lambda: self._state.want(row.name, source, digest, pinned=pinned))  # noqa: B023
                    await self._bring(record, operation, source, digest, pin=pinned, kept=True)
                    break
                except LoradError as error:
                    failures.append(error)
            if record.info is None:
                record.source, record.failure = sources[-1][0], failures[-1]
                log.error("adapter %r couldn't be brought back: %s", row.name, failures[-1].message)
            operation.end(record.failure)
        for alias, target in (await self._write(self._state.aliases)).items():
            if alias in self._records or alias in taken:
                log.error("the alias %r is a name now, and isn't brought back", alias)
                continue
            try:
                self.registry.set_alias(alias, target)
            except LoradError as error:
                log.error("the alias %r couldn't be brought back: %s", alias, error.message)

    async def close(self) -> None:
        """Ends what is under way; a restart takes it up again."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fetches.shutdown(wait=False, cancel_futures=True)
        self._writes.shutdown(wait=True)
        self._state.close()

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Does `work` to its end, also if who waits for it gives up."""
        return await asyncio.shield(self.spawn(work))

    async def _write(self, change: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writes, change)

    def _leave(self, record: Record) -> None:
        """One operation less; a name that has nothing is forgotten."""
        record.users -= 1
        if record.users == 0 and record.info is None and record.failure is None:
            self._records.pop(record.name, None)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Does something in the background, until the manager is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _cancelled(name: str) -> LoradError:
    return Conflict(f"the load of {name!r} was ended by an unload", code="load_cancelled")
