"""Who uses a state file: each server holds a lock beside it, which is gone with its process however that ends.

The names begin with a dot, so that who deletes `state.sqlite*` beneath a server doesn't delete its lock too.
"""

from __future__ import annotations

import fcntl
import glob
import os
from pathlib import Path

from lorad.errors import Unavailable

BASE_DIGITS = 16
"""Of the base's digest."""


def lock_path(path: Path, base: str) -> Path:
    """The lock of the server that serves this base with the state file at `path`."""
    return path.with_name(f".{path.name}.{base[:BASE_DIGITS]}.lock")


def take(path: Path, base: str) -> int:
    """A descriptor that holds that lock as long as it's open."""
    descriptor = os.open(lock_path(path, base), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _lock(descriptor, fcntl.LOCK_EX):
        os.close(descriptor)
        raise Unavailable(
            f"another server of the same base uses the state file {path}: give this one another by --state-file",
            code="state_locked",
        )
    return descriptor


def is_used(path: Path) -> bool:
    """Whether a server of any base holds its lock, be the state file there or not."""
    return any(map(_is_held, path.parent.glob(f".{glob.escape(path.name)}.*.lock")))


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
