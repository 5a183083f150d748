"""Folders that become entries or were some: what is in here may be thrown away unless somebody works on it.

Each new folder has a lock file beside it, locked as long as its maker lives; so what a crash left is told from what
another process is filling. Names begin and end under the cache's lock.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lorad.sources.locks import FolderLock


class Staging:
    """The folder of unfinished and of dropped entries, on the cache's own file system."""

    def __init__(self, path: Path, lock: FolderLock) -> None:
        self._path, self._lock = path, lock
        path.mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A new empty folder; what is left of it at the end is removed."""
        name = secrets.token_hex(8)
        path, mark = self._path / name, self._path / f"{name}.lock"
        with self._lock:
            file = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                path.mkdir(mode=0o700)
            except BaseException:
                mark.unlink(missing_ok=True)
                os.close(file)
                raise
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            mark.unlink(missing_ok=True)
            os.close(file)

    def take(self, entry: Path) -> Path:
        """Moves an entry in here, out of sight. Under the lock; what it returns is to be removed after it."""
        gone = self._path / f"gone-{secrets.token_hex(8)}"
        os.rename(entry, gone)
        return gone

    @staticmethod
    def remove(folder: Path) -> None:
        """Removes a folder that `take` gave, or one of a crash."""
        shutil.rmtree(folder, ignore_errors=True)

    def clean(self) -> int:
        """Removes what processes left that don't live any more; says how many folders those were."""
        left: list[Path] = []
        with self._lock:
            for path in list(self._path.iterdir()):
                if path.suffix == ".lock":
                    continue
                mark = path.with_name(f"{path.name}.lock")
                if _free(mark):
                    # Its maker may be ending right now: what ends isn't locked by us.
                    with suppress(FileNotFoundError):
                        left.append(self.take(path))
                    mark.unlink(missing_ok=True)
            for mark in self._path.glob("*.lock"):
                if not mark.with_suffix("").exists() and _free(mark):
                    mark.unlink(missing_ok=True)
        for path in left:
            self.remove(path)
        return len(left)


def _free(mark: Path) -> bool:
    """Whether nobody has the lock."""
    try:
        file = os.open(mark, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True
