"""Files and folders that somebody names: in an option, in a request, in another file.

A path may be too long, hold a NUL or name a home that isn't there; at its end there may be a pipe into which nobody
writes, or a device that has no end. None of these is waited for or read without end, and each is an OSError.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

Named = str | Path


def expanded(path: Named) -> Path:
    """`path` with `~` as a home. One that isn't there is left as it is, and nothing will be found at it."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_file(path: Named) -> bool:
    """Whether there's a regular file; what can't be looked up is none."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: Named) -> bool:
    """Whether there's a folder; what can't be looked up is none."""
    return stat.S_ISDIR(_mode(path))


def read_small(path: Named, bytes_max: int) -> bytes:
    """A regular file, whole. OSError, whose `strerror` says why: it can't be read, is something else or longer."""
    try:
        # A pipe without a writer would hold a blocking open back.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError:  # of a NUL
        raise OSError(errno.EINVAL, "no file can have that name") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it isn't a regular file")
        with open(handle, "rb", closefd=False) as file:
            content = file.read(bytes_max + 1)
    finally:
        os.close(handle)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"it is longer than {bytes_max} bytes")
    return content


def read_text(path: Named, bytes_max: int) -> str:
    """`read_small` as UTF-8; ValueError if it isn't."""
    return read_small(path, bytes_max).decode()


def read_json(path: Named, bytes_max: int) -> Any:
    """`read_small` as JSON; ValueError if it isn't."""
    try:
        return json.loads(read_small(path, bytes_max))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _mode(path: Named) -> int:
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0
