"""`Operation`: one thing that was asked for and takes time, with its state, progress, estimate and reason."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from lorad.errors import LoradError, NotFound

KEPT = 1024
"""Operations that have ended and can still be asked for."""


class Operation:
    """A load, an unload or a prewarming."""

    def __init__(self, kind: str, adapters: list[str], *, id: str, now: Callable[[], float]) -> None:
        self.id = id
        self.kind = kind
        self.adapters = adapters
        self.stage = "waiting"
        """What it is at: waiting (for another one on the same name), fetching, checking, draining, paging_in,
        restoring, ended."""
        self.error: LoradError | None = None
        self.result: dict[str, Any] = {}
        self.estimate_seconds: float | None = None
        """How long it may still take; None: nothing like it was measured yet."""
        self._progress: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._now = now
        self._began = now()
        self._ended_at: float | None = None
        self._accepted = asyncio.Event()
        self._cancelled = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants its outcome any more. May be asked on any thread."""
        return self._cancelled.is_set()

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self._ended.is_set()

    def at(self, stage: str, estimate_seconds: float | None = None) -> None:
        """It has come to a stage."""
        self.stage, self.estimate_seconds = stage, estimate_seconds
        self.progress(0, 0)

    def progress(self, done: int, total: int) -> None:
        """Bytes, requests or adapters of the stage; `total` 0: unknown. May be called on any thread."""
        self._progress = lambda: (done, total)

    def track(self, progress: Callable[[], tuple[int, int]]) -> None:
        """Likewise, looked up when somebody asks."""
        self._progress = progress

    def accept(self) -> None:
        """From here on a restart takes it up again."""
        self._accepted.set()

    def end(self, error: LoradError | None = None, **result: Any) -> None:
        """It has succeeded with a result, or failed."""
        self.at("ended")
        self.error, self.result = error, result
        self._ended_at = self._now()
        self._accepted.set()
        self._ended.set()

    def cancel(self) -> None:
        """Its outcome isn't wanted any more: it ends when it next looks."""
        self._cancelled.set()

    async def unless_cancelled(self, work: asyncio.Task[Any]) -> bool:
        """Waits for `work`, or until it isn't wanted. Whether it has ended."""
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        try:
            await asyncio.wait((work, cancelled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            cancelled.cancel()
        return work.done()

    async def accepted(self) -> None:
        """Waits until it's certain that it will be done, or has ended."""
        await self._accepted.wait()

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits for its end, at most so long. Whether it has ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass
        return self.ended

    def card(self) -> dict[str, Any]:
        """As its endpoint shows it."""
        state = "running" if not self.ended else "failed" if self.error is not None else "succeeded"
        card: dict[str, Any] = {
            "id": self.id,
            "object": "operation",
            "kind": self.kind,
            "adapters": self.adapters,
            "state": state,
            "stage": self.stage,
            "seconds": round((self._ended_at or self._now()) - self._began, 3),
        }
        if not self.ended:
            done, total = self._progress()
            card["progress"] = {"done": done, "total": total or None}
            card["estimate_seconds"] = self.estimate_seconds
        if self.error is not None:
            card["error"] = {"code": self.error.code, "message": self.error.message}
        return card | self.result


class Operations:
    """Those that run, and the last ones that have ended."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    ) -> None:
        self._now = now
        self._new_id = new_id
        self._all: OrderedDict[str, Operation] = OrderedDict()

    def begin(self, kind: str, *adapters: str, listed: bool = True) -> Operation:
        """A new one; `listed`: it can be asked for."""
        operation = Operation(kind, list(adapters), id=f"op-{self._new_id()}", now=self._now)
        if not listed:
            return operation
        self._all[operation.id] = operation
        for known in list(self._all.values())[: max(0, len(self._all) - KEPT)]:
            if known.ended:
                del self._all[known.id]
        return operation

    def find(self, id: str) -> Operation:
        """The one of this id."""
        if id not in self._all:
            raise NotFound(f"The operation {id[:64]!r} does not exist", code="operation_not_found")
        return self._all[id]

    def listing(self) -> list[Operation]:
        """All, oldest first."""
        return list(self._all.values())
