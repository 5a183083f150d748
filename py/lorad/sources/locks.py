"""Locks between threads and between processes that share a cache; the system lets go of them when a process dies.

`FolderLock` is held for moments only: names change under it, no bytes are copied. `Holds` says which entries are in
use: a count by digest in memory, and for other processes a shared lock on one byte of one file, at an offset that the
digest gives.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections import Counter
from pathlib import Path

_OFD = getattr(fcntl, "F_OFD_SETLK", None)
"""Locks that belong to an open file, not to a process: closing another one leaves them alone. Linux."""


class FolderLock:
    """Mutual exclusion between all threads of all processes that name the same file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = threading.Lock()
        self._file = -1

    def __enter__(self) -> None:
        self._thread.acquire()
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except BaseException:
            self._thread.release()
            raise

    def __exit__(self, *error: object) -> None:
        os.close(self._file)
        self._thread.release()


class Holds:
    """Which entries must stay. Called with the folder's lock held."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._counts: Counter[str] = Counter()

    def add(self, digest: str) -> None:
        """One more holds it."""
        if not self._counts[digest]:
            self._lock(digest, fcntl.F_RDLCK)
        self._counts[digest] += 1

    def remove(self, digest: str) -> None:
        """One less; ValueError if nobody held it."""
        if not self._counts[digest]:
            raise ValueError(f"{digest} isn't held")
        self._counts[digest] -= 1
        if not self._counts[digest]:
            del self._counts[digest]
            self._lock(digest, fcntl.F_UNLCK)

    def count(self, digest: str) -> int:
        """How many hold it in this process."""
        return self._counts.get(digest, 0)

    def held(self, digest: str) -> bool:
        """Whether anybody holds it, in any process."""
        if self.count(digest):
            return True
        if not self._lock(digest, fcntl.F_WRLCK):
            return True
        self._lock(digest, fcntl.F_UNLCK)
        return False

    def close(self) -> None:
        """Lets go of all; nothing can be held afterwards."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self._counts.clear()

    def _lock(self, digest: str, kind: int) -> bool:
        if _OFD is None:
            return True
        # struct flock: type, whence, start, length, pid. Two digests of one offset keep each other, no more.
        wanted = struct.pack("hhqqi0q", kind, os.SEEK_SET, int(digest[:15], 16), 1, 0)
        try:
            fcntl.fcntl(self._file, _OFD, wanted)
        except BlockingIOError:
            return False
        return True
