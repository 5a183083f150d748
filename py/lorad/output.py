"""Files that a command writes for its user: whole, or refused with the option that named them."""

from __future__ import annotations

from pathlib import Path

from lorad.errors import InvalidRequest
from lorad.models.fields import shown
from lorad.named_file import is_folder


def write_bytes(path: Path, content: bytes, param: str) -> None:
    """Writes a file whole, or says why it can't."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidRequest(f"{param}: {path}: {error.strerror}", code="file_write", param=param) from None


def check_folder(path: Path, param: str) -> None:
    """Refuses a file in a folder that isn't there, before a command works for what it couldn't write."""
    if not is_folder(path.parent):
        raise InvalidRequest(f"{param}: {shown(str(path))}: there is no such folder", code="file_write", param=param)
