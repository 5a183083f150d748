"""The seam between server and engine: what the server asks of an engine, wherever that runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lorad.adapters.combine.weighted import Term
from lorad.engine.messages import AdapterInfo, Finished, Generate, ModelInfo, Stats, Token
from lorad.errors import LoradError


class Sink(Protocol):
    """Where one request's tokens go. Called on the event loop; must neither block nor raise."""

    def token(self, token: Token) -> None:
        """One more token."""

    def finished(self, end: Finished) -> None:
        """The request has ended; nothing follows but `flush`."""

    def failed(self, request_id: int, error: LoradError) -> None:
        """The engine is gone; nothing follows but `flush`."""

    def flush(self) -> None:
        """All that one read brought has been handed over: time to act on it once."""


class EngineHandle(Protocol):
    """An engine as the server sees it."""

    @property
    def model(self) -> ModelInfo:
        """The base model; valid once the engine is ready."""

    @property
    def life(self) -> int:
        """Which engine process it is. What one has loaded is gone with it."""

    @property
    def fault(self) -> LoradError | None:
        """Why no tokens can be made now; None while they can."""

    def submit(self, request: Generate, sink: Sink) -> None:
        """Hands a request over; raises `Unavailable` when the engine is gone. Refusals come as `finished`."""

    def abort(self, request_id: int) -> None:
        """Ends a request early; its sink still hears `finished`, maybe after some more tokens. Unknown ids are fine."""

    async def load_adapter(self, name: str, path: str) -> AdapterInfo:
        """Reads, checks and registers an adapter folder. Each load wants a `release_adapter`: the same content loaded
        twice is one generation that is held twice."""

    async def combine_adapters(self, terms: Sequence[Term]) -> AdapterInfo:
        """Registers the sum of registered adapters under `generation_of(terms)`. Wants a `release_adapter`, as a load
        does."""

    async def release_adapter(self, generation: str, *, pinned: bool = False, life: int | None = None) -> None:
        """Undoes one load, and its pin. The last one of a generation takes no more requests for it, and returns when
        it's drained and forgotten. `life`: of the load (`AdapterInfo.life`); what a process held that is gone needs no
        release."""

    async def pin_adapter(self, generation: str, pinned: bool) -> None:
        """Keeps a generation in pages, for one of its loads, or no longer."""

    async def prewarm_adapter(self, generation: str) -> None:
        """Pages a generation in when there is room that nobody uses."""

    async def set_tenant(
        self, tenant: int, *, weight: int = 100, running_max: int = 0, waiting_max: int = 0, pages_max: int = 0
    ) -> None:
        """Gives a tenant its share, and limits (0: none) of what it may run, let wait and hold."""

    async def stats(self) -> Stats:
        """The engine's counters now."""
