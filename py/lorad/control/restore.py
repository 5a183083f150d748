"""`Restore`: what was asked for before the start comes back.

Names are known at once. Their adapters are brought one after the other, in the background; who asks for one has it
brought ahead of all others and waits for it. What is on the disk doesn't change by that: whenever a server dies, the
next one has as much to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from lorad.control.background import Background
from lorad.control.bring import Bring
from lorad.control.operation import Operation, Operations
from lorad.control.record import Awaited, Record, Source
from lorad.engine.handle import EngineHandle
from lorad.errors import EngineFailure, LoradError, Overloaded, Unavailable
from lorad.server.registry import Registry
from lorad.store.state import AdapterRow, StateFile
from lorad.store.thread import StateThread

log = logging.getLogger("lorad.server")

TELL_SECONDS = 10.0
"""How often the log hears how far it is."""

NO_ROOM = ("adapter_image", "cache_full", "cache_unusable")
"""Refusals that say nothing against the adapter: another moment may have room for it."""


class Restore:
    """Puts what the state file knows into the manager's records and the registry."""

    def __init__(
        self,
        handle: EngineHandle,
        records: dict[str, Record],
        operations: Operations,
        registry: Registry,
        state: StateThread,
        bring: Bring,
        background: Background,
    ) -> None:
        self._handle = handle
        self._records = records
        self._operations = operations
        self._registry = registry
        self._state = state
        self._bring = bring
        self._background = background
        self._asked_for = 0
        """Names that somebody waits for."""
        self._nobody_waits = asyncio.Event()
        self._nobody_waits.set()

    async def read(self, taken: Collection[str] = ()) -> None:
        """Makes names and aliases known. `taken`: names that options of the start have, which aliases make way for."""
        for row in await self._state.do(StateFile.adapters):
            self._make_known(row)
        for alias, target in (await self._state.do(StateFile.aliases)).items():
            if alias in self._records or alias in taken:
                log.error("the alias %r is a name now, and isn't brought back", alias)
                continue
            try:
                self._registry.set_alias(alias, target)
            except LoradError as error:
                log.error("the alias %r couldn't be brought back: %s", alias, error.message)

    def _make_known(self, row: AdapterRow) -> None:
        record = self._records[row.name] = Record(row.name, kept=True)
        try:
            self._bring.await_again(record, _awaited(row).sources, row.generation)
        except LoradError as error:
            self._fail(record, error)

    async def again(self) -> None:
        """The engine has died, and its adapters with it: what is in force, or was on its way, is to be brought back.
        Those that the state file doesn't know come from where they came from, and those that came on demand do so
        again."""
        rows = {row.name: row for row in await self._state.do(StateFile.adapters)}
        for row in rows.values():
            if row.name not in self._records:  # its load ended with the engine
                self._make_known(row)
        for record in list(self._records.values()):
            if record.info is None or record.info.life == self._handle.life:  # the next engine has loaded it already
                continue
            known = rows.get(record.name)
            if known is None and record.on_demand and not record.busy:  # as after a restart: the next request brings it
                self._bring.drop(record)
                del self._records[record.name]
                continue
            sources = () if known is None else _awaited(known).sources
            if record.digest and (known is None or not known.source):  # the state file knows nothing of what's in force
                sources += (Source(record.source, record.digest, record.pinned, new=False),)
            if sources:
                self._bring.await_again(record, sources, record.info.generation)

    def begin(self, on_progress: Callable[[int, int, int], None]) -> None:
        """Begins to bring all back, pinned ones first; `on_progress(done, failed, total)` hears how far it is."""
        names = sorted((one for one in self._records.values() if one.awaited), key=lambda record: not record.pinned)
        if names:
            self._background.spawn(self._all(names, self._operations.begin("restore"), on_progress))

    async def bring(self, record: Record) -> None:
        """Somebody asks for `record`, and has its turn: it's ready or failed when this returns. Raises why it can't be
        brought at the moment, and may be later."""
        self._asked_for += 1
        self._nobody_waits.clear()
        try:
            await self._bring_back(record)
        finally:
            self._asked_for -= 1
            if not self._asked_for:
                self._nobody_waits.set()

    async def _all(
        self, names: list[Record], operation: Operation, on_progress: Callable[[int, int, int], None]
    ) -> None:
        clock, total = asyncio.get_running_loop().time, len(names)
        began = told = clock()

        def count() -> tuple[int, int, int]:
            """Done, failed, of how many."""
            back = sum(record.awaited is None for record in names)
            return back, sum(record.failure is not None for record in names), total

        operation.accept()
        operation.at("restoring")
        operation.track(lambda: (count()[0], total))
        stopped: LoradError | None = None
        for record in names:
            await self._nobody_waits.wait()
            try:
                async with record.lock:
                    await self._bring_back(record)
            except LoradError as error:
                stopped = error
                break
            done = count()[0]
            operation.estimate_seconds = round((clock() - began) / max(done, 1) * (total - done), 3)
            if clock() - told >= TELL_SECONDS:
                told = clock()
                on_progress(*count())
        if stopped is not None and self._handle.fault is None:  # else all of it begins again with the next engine
            left = sum(record.awaited is not None for record in names)
            log.error("%d adapters aren't back; each will be when it's asked for: %s", left, stopped.message)
        on_progress(*count())
        operation.end(
            stopped,
            ready=[record.name for record in names if record.info is not None],
            failed=[record.name for record in names if record.failure is not None],
            left=[record.name for record in names if record.awaited is not None],
        )

    async def _bring_back(self, record: Record) -> None:
        """The content that was in force, or a newer one whose load was under way."""
        awaited = record.awaited
        if awaited is None:
            return
        operation = record.restoring = self._operations.begin("restore", record.name, listed=False)
        failures: list[LoradError] = []
        try:
            for source in awaited.sources:
                try:
                    if failures:  # the newer one can't be had
                        await self._state.do(lambda state: state.give_up(record.name))
                    await self._bring_source(record, operation, source)
                    break
                except LoradError as error:
                    if operation.cancelled:
                        return
                    if self._says_nothing(error):
                        raise
                    failures.append(error)
                except Exception:
                    log.exception("bringing adapter %r back failed", record.name)
                    failures.append(EngineFailure("the adapter could not be loaded", code="adapter_load"))
        finally:
            record.restoring = None
        if operation.cancelled:
            return
        record.awaited = None
        if record.info is None:
            self._registry.withdraw(record.name)
            self._fail(record, failures[-1])
        elif record.pinned != source.pinned:
            log.warning("adapter %r isn't pinned any more: there's no room for its pin", record.name)

    async def _bring_source(self, record: Record, operation: Operation, source: Source) -> None:
        async def bring() -> None:
            await self._bring.bring(record, operation, source.text, source.digest, pin=source.pinned, kept=source.new)

        try:
            await bring()
        except EngineFailure as error:
            if error.code != "loader_died" or operation.cancelled:
                raise
            await bring()  # it may have died of something else than this adapter; twice, and it's this one

    def _says_nothing(self, error: LoradError) -> bool:
        """Whether it's no fault of the adapter."""
        return isinstance(error, (Unavailable, Overloaded)) or error.code in NO_ROOM or self._handle.fault is not None

    @staticmethod
    def _fail(record: Record, error: LoradError) -> None:
        record.digest, record.pinned, record.awaited, record.failure = "", False, None, error
        log.error("adapter %r couldn't be brought back: %s", record.name, error.message)


def _awaited(row: AdapterRow) -> Awaited:
    newer = Source(row.wanted_source, row.wanted_digest, row.wanted_pinned, new=True)
    before = Source(row.source, row.digest, row.pinned, new=False)
    return Awaited(tuple(source for source in (newer, before) if source.text))
