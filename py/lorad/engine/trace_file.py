"""The file that the scheduler's inputs go to, for `lorad.debug`."""

from __future__ import annotations

import os
from typing import TextIO

from lorad.errors import InvalidRequest
from lorad.models.fields import shown
from lorad.named_file import is_file


class TraceFile:
    """A new file, readable by its owner only: token ids are in it."""

    def __init__(self, path: str) -> None:
        """Takes `path`, or the first of `path.1`, `path.2`, … that isn't there: a restart keeps what led to it."""
        self.path = path
        count = 0
        while True:
            try:
                handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                break
            except FileExistsError:
                if not is_file(self.path):
                    raise _refused(f"{self.path}: it isn't a regular file") from None
                count += 1
                self.path = f"{path}.{count}"
            except OSError as error:
                raise _refused(f"{shown(self.path)}: {error.strerror}") from error
        self._file: TextIO = os.fdopen(handle, "w", encoding="utf-8")

    def write(self, lines: str) -> None:
        """Adds lines; they are the operating system's when this returns."""
        if lines and not self._file.closed:
            self._file.write(lines)
            self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


def _refused(what: str) -> InvalidRequest:
    return InvalidRequest(f"trace_file: {what}", code="option_form", param="trace_file")
