"""`PagedIn`: the last page-in of each adapter, and what a request waited for."""

from __future__ import annotations

from typing import Any, NamedTuple

from lorad.engine.messages import Waits


class _Last(NamedTuple):
    """A page-in that has ended. Times in µs of the core's clock."""

    asked: int
    ended: int
    bytes: int
    """0: it failed, or a request was charged with it."""


class PagedIn:
    """The last page-in of each adapter."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}

    def note(self, adapter: int, *, asked: int, ended: int, size: int) -> None:
        """One has ended; `size` in bytes, 0: it failed."""
        self._last[adapter] = _Last(asked, ended, size)

    def forget(self, adapter: int) -> None:
        """The core has forgotten it."""
        self._last.pop(adapter, None)

    def waits(self, told: dict[str, Any]) -> Waits:
        """What the core's `explain` tells of a request that has ended; loading is what the page-in and the wait have in
        common. The first request that waited for a page-in is charged with it."""
        arrived: int = told["arrived"]
        ran: int = next(at for at in (told["admitted"], told["finished"], arrived) if at is not None)
        last = self._last.get(told["adapter"], _Last(0, 0, 0))
        loading = max(min(ran, last.ended) - max(arrived, last.asked), 0)
        charged = last.bytes if told["tier"] == "cold" and arrived <= last.asked <= ran else 0
        if charged:
            self._last[told["adapter"]] = last._replace(bytes=0)
        return Waits(told["tier"], (ran - arrived) / 1e6, loading / 1e6, told["preemptions"], charged)
