"""`Restore`: what was asked for before the start is brought back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from lorad.control.bring import Bring
from lorad.control.operation import Operations
from lorad.control.record import Record
from lorad.errors import LoradError
from lorad.server.registry import Registry
from lorad.store.state import StateFile
from lorad.store.thread import StateThread

log = logging.getLogger("lorad.server")


class Restore:
    """Puts what the state file knows into the manager's records and the registry."""

    def __init__(
        self,
        records: dict[str, Record],
        operations: Operations,
        registry: Registry,
        state: StateThread,
        bring: Bring,
    ) -> None:
        self._records = records
        self._operations = operations
        self._registry = registry
        self._state = state
        self._bring = bring

    async def restore(
        self,
        on_name: Callable[[str, int, int], None] = lambda name, done, total: None,
        taken: Collection[str] = (),
    ) -> None:
        """Brings back what was asked for: the content that was in force, or a newer one whose load was under way.

        Calls `on_name` for each. One that can't be brought back is listed as failed, with the reason. `taken`: names
        that options of the start have, which aliases make way for.
        """
        rows = await self._state.do(StateFile.adapters)
        for number, row in enumerate(rows):
            on_name(row.name, number, len(rows))
            record = self._records.setdefault(row.name, Record(row.name, kept=True))
            operation = self._operations.begin("restore", row.name)
            sources = [(row.wanted_source, row.wanted_digest, row.wanted_pinned)] if row.wanted_source else []
            sources += [(row.source, row.digest, row.pinned)] if row.source else []
            failures: list[LoradError] = []
            for source, digest, pinned in sources:
                try:
                    self._registry.check_name(row.name)
                    if failures:  # the newer one can't be had: what was in force is wanted again
                        await self._state.do(lambda state: state.want(row.name, source, digest, pinned=pinned))  # noqa: B023
                    await self._bring.bring(record, operation, source, digest, pin=pinned, kept=True)
                    break
                except LoradError as error:
                    failures.append(error)
            if record.info is None:
                record.source, record.failure = sources[-1][0], failures[-1]
                log.error("adapter %r couldn't be brought back: %s", row.name, failures[-1].message)
            operation.end(record.failure)
        for alias, target in (await self._state.do(StateFile.aliases)).items():
            if alias in self._records or alias in taken:
                log.error("the alias %r is a name now, and isn't brought back", alias)
                continue
            try:
                self._registry.set_alias(alias, target)
            except LoradError as error:
                log.error("the alias %r couldn't be brought back: %s", alias, error.message)
