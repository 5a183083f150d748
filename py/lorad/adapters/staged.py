"""What a command makes of adapters gets its name when it's complete and verified; till then it's in a hidden folder.

`.NAME.unverified` is beside NAME, so that the last step is a rename. Whatever ends the command before, a refusal,
Ctrl-C or SIGTERM, takes the folder along; what a kill leaves is taken away by the next command that writes NAME.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lorad.errors import Conflict, InvalidRequest


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Gives a path of `output`'s name in the hidden folder, where nothing is yet. What the block puts there, a file or
    a folder, becomes `output` when the block ends."""
    _check_free(output)
    folder = output.with_name(f".{output.name}.unverified")
    with _ended_by_sigterm(), _locked(folder, output):
        try:
            with _writable(output):
                _empty(folder)
            yield folder / output.name
            _check_free(output)
            with _writable(output):
                (folder / output.name).rename(output)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _check_free(output: Path) -> None:
    if output.exists() or output.is_symlink():
        raise InvalidRequest(f"{output} exists already", code="output_exists", param="output")


@contextmanager
def _locked(folder: Path, output: Path) -> Iterator[None]:
    """Makes the folder; another command that has it is left alone. The lock goes with the process, whatever ends it."""
    with _writable(output):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise Conflict(
            f"{output} is being written by another command, in {folder}", code="output_busy", param="output"
        ) from None
    try:
        yield
    finally:
        os.close(handle)


def _empty(folder: Path) -> None:
    """Takes away what an earlier command left when it was killed."""
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as an exception does, as Ctrl-C does anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _writable(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(
            f"{output} can't be written: {error.strerror}", code="output_write", param="output"
        ) from None
