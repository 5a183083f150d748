"""One fetch of a source at a time, so that the next one finds what this one brought.

It still asks the source itself: what is being fetched may be older than the next caller's question.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lorad.sources.transfer import Transfer

POLL_SECONDS = 0.1


class Turns:
    """A lock for each source that somebody fetches or waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, tuple[threading.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @contextmanager
    def turn(self, source: str, transfer: Transfer) -> Iterator[None]:
        """Waits until nobody else fetches `source`, as long as `transfer` may."""
        with self._lock:
            turn, count = self._turns.get(source, (threading.Lock(), 0))
            self._turns[source] = turn, count + 1
        try:
            while not turn.acquire(timeout=POLL_SECONDS):
                transfer.check()
            try:
                yield
            finally:
                turn.release()
        finally:
            with self._lock:
                turn, count = self._turns[source]
                self._turns[source] = turn, count - 1
                if count == 1:
                    del self._turns[source]
