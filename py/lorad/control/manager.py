"""`AdapterManager`: which names a running server has. Loads, reloads and unloads by turns of a name, pins, aliases.

A load: written down as asked for → content in the cache → read, checked and registered by the engine → written down as
in force → the name switched to it in one go → what it meant before drains. A failure leaves all as it was.
An unload: the name taken away → written down → drained, within a time if one was given → forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from lorad.adapters.name import NAME_LENGTH_MAX
from lorad.control.background import Background
from lorad.control.bring import Bring, load_cancelled
from lorad.control.operation import Operation, Operations
from lorad.control.record import Load, Record
from lorad.control.restore import Restore
from lorad.engine.handle import EngineHandle
from lorad.engine.messages import AdapterInfo
from lorad.errors import Conflict, EngineFailure, InvalidRequest, LoradError, NotFound, Unavailable
from lorad.server.generation import Generation
from lorad.server.in_flight import InFlight
from lorad.server.registry import Registry
from lorad.sources.cache import AdapterCache
from lorad.sources.policy import SourcePolicy
from lorad.sources.source import parse_source
from lorad.store.state import StateFile
from lorad.store.thread import StateThread

log = logging.getLogger("lorad.server")

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
        self.check_load: Callable[[], None] = lambda: None
        """Raises while nothing new may be loaded."""
        self._handle = handle
        self._in_flight = in_flight
        self._policy = policy
        self._records: dict[str, Record] = {}
        self._background = Background()
        self._state = StateThread(state)
        self._bring = Bring(handle, registry, self._state, cache, policy, self._background)
        self._restore = Restore(
            handle, self._records, self.operations, registry, self._state, self._bring, self._background
        )

    # what is there

    @property
    def records(self) -> list[Record]:
        """All names, those too that couldn't be brought back."""
        return [record for record in self._records.values() if record.exists]

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return self._background.busy

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Seconds for a byte of an adapter's files: to check and register it, and to fetch it; None: not measured."""
        return self._bring.rates

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

    def has(self, name: str) -> bool:
        """Whether anything is known of a name."""
        return self.find(name) is not None

    def adopt(self, name: str, source: str, info: AdapterInfo) -> None:
        """Takes over an adapter that was loaded by an option of the start, which the state file doesn't know."""
        record = self._records.setdefault(name, Record(name))
        record.source, record.info, record.failure = source, info, None

    def lose(self, name: str, error: LoradError) -> None:
        """Such an adapter couldn't be loaded again after the engine's death: the name is listed as failed."""
        record = self._records[name]
        record.info, record.pinned, record.failure = None, False, error

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
        self.check_load()
        record = self._records.get(name) or Record(name)
        load = Load(source, digest, reload=reload, pinned=pinned, on_demand=on_demand)
        if (running := record.loading) is not None:
            # One that reads already may have read what the caller wants to have replaced.
            if record.loads[-1][1] == load and not (reload and running.stage != "waiting"):
                return running
        elif not reload and (record.info is not None or record.awaited is not None):
            self._check_same(record, load)
        self._records[name] = record
        kind = "load" if record.info is None and record.awaited is None else "reload"
        operation = self.operations.begin(kind, name, listed=not on_demand)
        record.loads.append((operation, load))
        record.users += 1
        self._background.spawn(self._load(record, operation, load))
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
                    raise load_cancelled(record.name)
                if load.on_demand and (fault := self._handle.fault) is not None:
                    raise fault  # what an operator asked for under this name comes first, once the engine is back
                await self._restore.bring(record)  # what was asked for before the start comes first
                if not load.reload and record.info is not None:
                    self._check_same(record, load)
                    operation.end(changed=False, **await self._confirm(record, load))
                    return
                operation.end(**await self._bring_kept(record, operation, load))
        except LoradError as error:
            operation.end(load_cancelled(record.name) if operation.cancelled else error)
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
                await self._bring.pin(record, True)
            except LoradError as error:
                return {"warnings": [f"it isn't pinned: {error.message}"]}
        return {}

    async def _keep(self, record: Record, *, pinned: bool) -> None:
        """Has the state file know what is in force."""
        info, source, digest = record.info, record.source, record.digest
        if info is not None:
            await self._state.do(lambda state: state.want(record.name, source, digest, pinned=pinned))
            await self._state.do(lambda state: state.keep(record.name, source, digest, info.generation))
            record.kept, record.on_demand = True, False

    async def _bring_kept(self, record: Record, operation: Operation, load: Load) -> dict[str, Any]:
        """A load with its two entries in the state file: asked for, and in force."""
        pin, failed = record.pinned or load.pinned, record.failure is not None
        kept = not load.on_demand
        if kept:
            await self._state.do(lambda state: state.want(record.name, load.source, load.digest, pinned=pin))
        operation.accept()
        try:
            return await self._bring.bring(record, operation, load.source, load.digest, pin=pin, kept=kept)
        except LoradError:
            # What the engine's death ended is still asked for.
            if kept and self._handle.fault is None:
                if failed and not operation.cancelled:  # what couldn't be brought back is still asked for, too
                    was = record.source
                    await self._state.do(lambda state: state.want(record.name, was, "", pinned=pin))
                else:
                    await self._state.do(lambda state: state.give_up(record.name))
            raise

    # unloading

    def unload(self, name: str, *, within_seconds: float | None = None, listed: bool = True) -> Operation:
        """Takes the name away at once. Its requests end on what they were admitted with: in their own time, or within
        `within_seconds` and then with an error (0: at once)."""
        record = self.record(name)
        operation = self.operations.begin("unload", name, listed=listed)
        for load, _ in record.loads:
            load.cancel()
        if record.restoring is not None:
            record.restoring.cancel()
        was = replace(record)
        record.info, record.digest, record.pinned, record.failure, record.awaited = None, "", False, None, None
        if was.info is not None or was.awaited is not None:
            self.registry.withdraw(name)
        record.users += 1
        self._background.spawn(self._unload(record, operation, was, self._in_flight.of(name), within_seconds))
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
            ending = self._background.spawn(self._end(running, within_seconds))
            async with record.lock:
                try:
                    await self._state.do(lambda state: state.remove(record.name))
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
                await asyncio.gather(ending, self._bring.forget(was.info, was.digest, pinned=was.pinned))
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
            record.awaited = was.awaited
            if was.info is not None:
                self.registry.publish(was.info)
            elif was.awaited is not None:
                self.registry.announce(record.name)

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
        return await self._background.whole(self._pin_in_turn(self.record(name), pinned))

    async def _pin_in_turn(self, record: Record, pinned: bool) -> Record:
        async with record.lock:
            await self._restore.bring(record)
            if record.info is None:
                raise Conflict(f"the adapter {record.name!r} isn't loaded: {record.state}", code="adapter_not_ready")
            if pinned and record.on_demand:  # an operator wants it to stay
                await self._keep(record, pinned=record.pinned)
                await self._restore.bring(record)  # if its engine has died meanwhile
            if record.pinned != pinned:
                await self._bring.pin(record, pinned)
        return record

    async def set_alias(self, alias: str, target: str) -> None:
        """Lets `alias` stand for the adapter `target`."""
        self.record(target)
        if alias in self._records:
            raise InvalidRequest(f"{alias!r} is an adapter's name", code="adapter_name", param="alias")
        self.registry.set_alias(alias, target)
        await self._background.whole(self._state.do(lambda state: state.alias(alias, target)))

    async def remove_alias(self, alias: str) -> None:
        """Takes an alias away."""
        self.registry.remove_alias(alias)
        await self._background.whole(self._state.do(lambda state: state.remove_alias(alias)))

    # start and end

    async def read_state(self, taken: Collection[str] = ()) -> None:
        """Makes the names known that were asked for before the start, and their aliases, but for those that are among
        `taken`, the names of options. Each can be asked for from now on: `bring_back`."""
        await self._restore.read(taken)
        self._state.watch()

    def begin_restore(self, on_progress: Callable[[int, int, int], None] = lambda done, failed, total: None) -> None:
        """Begins to bring their adapters back in the background; `on_progress(done, failed, total)`."""
        self._restore.begin(on_progress)

    async def engine_died(self) -> None:
        """Makes all that the engine had known as to be brought back; `begin_restore` begins that."""
        await self._restore.again()

    async def bring_back(self, name: str) -> bool:
        """If what `name` stands for isn't back yet, waits until it is, ahead of all others, or is listed as failed.
        Whether there was something to wait for; Unavailable if it can't be brought at the moment."""
        record = self._records.get(self.registry.aliases.get(name, name))
        if record is None or record.awaited is None:
            return False
        await self._background.whole(self._bring_back_in_turn(record))
        return True

    async def _bring_back_in_turn(self, record: Record) -> None:
        async with record.lock:
            try:
                await self._restore.bring(record)
            except LoradError as error:
                raise Unavailable(
                    f"the adapter {record.name!r} can't be brought back now: {error.message}", code=error.code
                ) from None

    async def close(self) -> None:
        """Ends what is under way; a restart takes it up again."""
        await self._background.close()
        self._bring.close()
        self._state.close()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Does something in the background, until the manager is closed."""
        return self._background.spawn(work)

    def _leave(self, record: Record) -> None:
        """One operation less; a name that has nothing is forgotten."""
        record.users -= 1
        if record.users == 0 and not record.exists:
            self._records.pop(record.name, None)
