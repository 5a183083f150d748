"""One fetch as it goes: its limits, its progress, and the files it writes."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lorad.sources.policy import SourcePolicy
from lorad.sources.reject import reject

CHUNK_BYTES = 1 << 20
COPY_BYTES = 32 << 20
SLICE_SECONDS = 0.1
"""How long a pause may go on without a look at `cancelled`."""


class DiskFailed(Exception):
    """The cache's disk, not the source, failed; `error` says how."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Stored(NamedTuple):
    """A file of an entry."""

    name: str
    bytes: int
    sha256: str


class Transfer:
    """Counts bytes and time of one fetch; every part of it asks `check` again and again.

    `clock` gives seconds, `wait` sleeps for seconds, `chance` gives 0 to 1.
    """

    def __init__(
        self,
        where: str,
        policy: SourcePolicy,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        cancelled: Callable[[], bool] = lambda: False,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.where = where
        self.policy = policy
        self._on_progress, self._cancelled = on_progress, cancelled
        self._clock, self._wait, self._chance = clock, wait, chance
        self._end = clock() + policy.seconds_max
        self.done = self.total = 0

    def begin(self, total: int | None) -> None:
        """Starts counting anew; `total` in bytes, None if it isn't known."""
        self.done, self.total = 0, total or 0
        self._on_progress(0, self.total)

    def took(self, count: int) -> None:
        """`count` further bytes are in a file."""
        self.done += count
        if self.done > self.policy.bytes_max:
            raise reject("source_size", f"{self.where} has more than {self.policy.bytes_max} bytes")
        self._on_progress(self.done, max(self.done, self.total))
        self.check()

    def check(self) -> None:
        """Ends a fetch that nobody wants or that has taken too long."""
        if self._cancelled():
            raise reject("source_cancelled", f"fetching {self.where} was cancelled")
        if self.remaining() <= 0:
            raise self.late()

    def late(self) -> Exception:
        """The refusal of a fetch that has taken too long."""
        return reject("source_timeout", f"{self.where} wasn't here after {self.policy.seconds_max:g} s")

    def remaining(self) -> float:
        """Seconds that are left."""
        return self._end - self._clock()

    def pause(self, attempt: int, least: float = 0.0) -> None:
        """Waits before retry `attempt` (from 0), at least `least` seconds, at most half a minute."""
        seconds = self.policy.retry_seconds * 2**attempt * (0.5 + self._chance() / 2)
        self.wait(min(30.0, max(least, seconds)))

    def wait(self, seconds: float) -> None:
        """Waits, and ends early as `check` does."""
        until = self._clock() + seconds
        self.check()
        while (left := until - self._clock()) > 0:
            self._wait(min(left, SLICE_SECONDS))
            self.check()


class Sink:
    """A new file of a staging folder, hashed as it's written."""

    def __init__(self, folder: Path, name: str, transfer: Transfer) -> None:
        self.name, self.path = name, folder / name
        self._transfer = transfer
        try:
            self._file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DiskFailed(error) from None
        self._hash: hashlib._Hash | None = hashlib.sha256()
        self.written = 0

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Appends `data`."""
        view = memoryview(data)
        if self._hash is not None:
            self._hash.update(view)
        while view:
            try:
                count = os.write(self._file, view)
            except OSError as error:
                raise DiskFailed(error) from None
            view = view[count:]
            self.written += count
            self._transfer.took(count)

    def restart(self) -> None:
        """Forgets all that was written."""
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        self._transfer.done -= self.written
        self._hash, self.written = hashlib.sha256(), 0

    def copy(self, source: int, most: int) -> None:
        """Appends what the open file `source` has, up to `most` bytes; by reflink where the file system can."""
        self._hash = None
        try:
            while count := os.copy_file_range(source, self._file, min(COPY_BYTES, most - self.written)):
                self.written += count
                self._transfer.took(count)
            return
        except OSError:
            # Another file system, or one that can't: the offsets are where the last call left them.
            self._transfer.check()
        while data := self._read(source, min(CHUNK_BYTES, most - self.written)):
            self.write(data)

    def _read(self, source: int, count: int) -> bytes:
        try:
            return os.read(source, count)
        except OSError as error:
            raise reject("source_unreachable", f"{self.name} can't be read: {error.strerror}") from None

    def finish(self) -> Stored:
        """The file is complete: it's on the disk when this returns, and nobody's to write."""
        if self._hash is None:
            self._hash = hashlib.sha256()
            os.lseek(self._file, 0, os.SEEK_SET)
            while data := os.read(self._file, CHUNK_BYTES):
                self._hash.update(data)
                self._transfer.check()
        try:
            os.fchmod(self._file, 0o444)
            os.fsync(self._file)
        except OSError as error:
            raise DiskFailed(error) from None
        return Stored(self.name, self.written, self._hash.hexdigest())
