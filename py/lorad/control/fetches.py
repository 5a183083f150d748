"""`Fetches`: threads that read sources, so many for each place. A place that hangs costs its own loads only.

A call of the system's on a dead disk ends when it likes, and its thread with it. Such a fetch is given up after a time:
who waits for it is told, another thread takes its turn, and it counts against its place until it ends after all.

                     of one place      of all
 waits               any number        any number
 runs                ┐                 ≤ RUNNING_MAX
 was given up        ┘ ≤ PLACE_MAX     ≤ HUNG_MAX, further ones count as running
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lorad.errors import LoradError
from lorad.sources.reject import reject
from lorad.sources.source import Source

RUNNING_MAX = 8
PLACE_MAX = 4
HUNG_MAX = 32
GRACE_SECONDS = 10.0
"""Beyond the time that a fetch has. One that doesn't hang has looked at the clock by then, and ended by itself."""

T = TypeVar("T")


def place_of(source: Source) -> str:
    """What hangs together: a host, a service, the folders that a path is looked for in."""
    if source.scheme == "file":
        return ", ".join(map(str, source.roots))
    return source.place if source.scheme in ("http", "https") else f"{source.scheme}://"


@dataclass(eq=False)
class Fetch:
    """One that waits or runs."""

    place: str
    what: str
    """As who asked for it calls it."""
    turn: asyncio.Future[None]
    admitted: bool = False
    given_up: bool = False
    """Nobody waits for it any more. Looked at on its thread too."""
    hangs: bool = False
    replaced: bool = False
    """Another one may run beside it."""


class Fetches:
    """Lives on the event loop. Its threads don't keep the process from ending."""

    def __init__(self) -> None:
        self._waiting: list[Fetch] = []
        self._at: Counter[str] = Counter()
        """By place, those that run and those that were given up."""
        self._hung: Counter[str] = Counter()
        """Of them, the latter."""
        self._replaced = 0
        self._closed = False

    async def run(
        self,
        place: str,
        what: str,
        work: Callable[[Callable[[], bool]], T],
        seconds: float,
        undo: Callable[[T], None],
    ) -> T:
        """What `work` gives, on a thread, when it's its turn; or a refusal `seconds` (and some grace) after that.

        `work` may ask whether it was given up; `undo` gets what it gives then. Refused at once where as many hang in
        `place` as may run there. `what`: for refusals.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        fetch = Fetch(place, what, loop.create_future())
        if self._hung[place] >= PLACE_MAX:
            raise _hung(fetch)
        self._waiting.append(fetch)
        self._admit()
        try:
            await fetch.turn
        except BaseException:
            if fetch.admitted:  # its turn came when nobody wanted it any more
                self._leave(fetch)
            elif fetch in self._waiting:
                self._waiting.remove(fetch)
            raise
        done.add_done_callback(lambda _: self._ended(fetch, done, undo))
        try:
            on_thread = (loop, done, work, lambda: fetch.given_up)
            threading.Thread(target=_work, args=on_thread, name="lorad-fetch", daemon=True).start()
        except RuntimeError as error:  # the system gives no thread
            done.set_exception(error)
        try:
            await asyncio.wait((done,), timeout=seconds + GRACE_SECONDS)
        finally:
            fetch.given_up = not done.done()
        if fetch.given_up:
            self._replace(fetch)
            raise reject("source_timeout", f"{what} wasn't here after {seconds:g} s: it hangs")
        return await done

    def close(self) -> None:
        """Begins no more. What runs ends when it next looks."""
        self._closed = True
        for fetch in self._waiting:
            fetch.turn.cancel()
        self._waiting.clear()

    def _admit(self) -> None:
        for fetch in list(self._waiting):
            if self._at.total() - self._replaced >= RUNNING_MAX:
                return
            if self._at[fetch.place] < PLACE_MAX and not fetch.turn.done():  # done: cancelled, it's about to leave
                self._waiting.remove(fetch)
                self._at[fetch.place] += 1
                fetch.admitted = True
                fetch.turn.set_result(None)

    def _replace(self, fetch: Fetch) -> None:
        fetch.hangs, fetch.replaced = True, self._replaced < HUNG_MAX
        self._replaced += fetch.replaced
        self._hung[fetch.place] += 1
        if self._hung[fetch.place] >= PLACE_MAX:
            for other in [other for other in self._waiting if other.place == fetch.place and not other.turn.done()]:
                self._waiting.remove(other)
                other.turn.set_exception(_hung(other))
        self._admit()

    def _ended(self, fetch: Fetch, done: asyncio.Future[T], undo: Callable[[T], None]) -> None:
        self._hung[fetch.place] -= fetch.hangs
        self._replaced -= fetch.replaced
        self._leave(fetch)
        # Why one failed that was given up, nobody wants to know any more.
        if done.exception() is None and fetch.given_up:
            undo(done.result())

    def _leave(self, fetch: Fetch) -> None:
        self._at[fetch.place] -= 1
        # Places come from clients: none is kept that has nothing.
        self._at, self._hung = +self._at, +self._hung
        if not self._closed:
            self._admit()


def _hung(fetch: Fetch) -> LoradError:
    return reject(
        "source_hung", f"{fetch.what}: {PLACE_MAX} fetches hang where it comes from, the limit: one must end before"
    )


def _work(
    loop: asyncio.AbstractEventLoop,
    done: asyncio.Future[T],
    work: Callable[[Callable[[], bool]], T],
    given_up: Callable[[], bool],
) -> None:
    tell: Callable[[], None]
    try:
        tell = partial(done.set_result, work(given_up))
    except BaseException as error:
        tell = partial(done.set_exception, error)
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(tell)
