"""The data folder, and digests of big files that are computed once."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from lorad.errors import InvalidRequest
from lorad.models.fields import shown
from lorad.named_file import expanded, read_json

CHUNK_BYTES = 1 << 22
ENTRY_BYTES_MAX = 1 << 16


def data_folder() -> Path:
    """Where lorad keeps what it fetched and computed: LORAD_DATA_DIR, else `lorad` in the XDG data home."""
    variable, given = "LORAD_DATA_DIR", os.environ.get("LORAD_DATA_DIR")
    if not given:
        variable, given = "XDG_DATA_HOME", (os.environ.get("XDG_DATA_HOME") or "~/.local/share") + "/lorad"
    folder = expanded(given)
    if str(folder).startswith("~"):
        # Not a folder of that name wherever one happens to be.
        raise InvalidRequest(
            f"{variable}: there is no home for {shown(given)}; set LORAD_DATA_DIR to a folder",
            code="data_folder",
            param="LORAD_DATA_DIR",
        )
    return folder


def hash_file(path: Path, on_progress: Callable[[int, int], None] = lambda done, total: None) -> str:
    """sha256 (hex) of a file's bytes, read now."""
    state = hashlib.sha256()
    done, total = 0, path.stat().st_size
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            state.update(chunk)
            done += len(chunk)
            on_progress(done, total)
    return state.hexdigest()


def file_digest(path: Path, on_progress: Callable[[int, int], None] = lambda done, total: None) -> str:
    """sha256 (hex) of a file, remembered in the data folder as long as path, size, times and inode stay the same."""
    path = path.resolve()
    known = _known_digest(path)
    if known is not None:
        return known
    before = _stamp(path)
    found = hash_file(path, on_progress)
    if _stamp(path) == before:
        _remember(path, before, found)
    return found


def _known_digest(path: Path) -> str | None:
    try:
        entry = read_json(_entry(path), ENTRY_BYTES_MAX)
    except (OSError, ValueError):
        return None
    if isinstance(entry, dict) and entry.get("stamp") == _stamp(path) and entry.get("path") == str(path):
        digest = entry.get("sha256")
        if isinstance(digest, str) and len(digest) == 64:
            return digest
    return None


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


def _entry(path: Path) -> Path:
    return data_folder() / "digests" / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def _remember(path: Path, stamp: list[int], digest: str) -> None:
    text = json.dumps({"path": str(path), "stamp": stamp, "sha256": digest})
    try:
        write_atomically(_entry(path), text.encode())
    except OSError:
        # A read-only data folder costs the time of hashing again, nothing else.
        return


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a small file so that nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name + ".", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
