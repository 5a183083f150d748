"""What an entry of the cache holds, written in the entry itself; the digest follows from it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lorad.models.files import hash_file
from lorad.sources.transfer import Stored

NAME = ".manifest.json"
BYTES_MAX = 4 << 20


class Manifest(NamedTuple):
    """Files of an entry by name, ascending, and where they came from."""

    files: tuple[Stored, ...]
    source: str

    @property
    def bytes(self) -> int:
        """Of all files together."""
        return sum(file.bytes for file in self.files)

    @property
    def digest(self) -> str:
        """sha256 (hex) over names and contents."""
        return digest_of(self.files)


def digest_of(files: Iterable[Stored]) -> str:
    """sha256 (hex) of a line for each file in the order of names: sha256 of its content, its bytes, its name."""
    state = hashlib.sha256(b"lorad adapter 1\n")
    for file in sorted(files):
        state.update(f"{file.sha256} {file.bytes} {file.name}\n".encode())
    return state.hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes it and waits until it and the folder's names are on the disk."""
    text = json.dumps({"version": 1, "source": manifest.source, "files": [file._asdict() for file in manifest.files]})
    with open(folder / NAME, "xb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def read_manifest(folder: Path) -> Manifest | None:
    """None if it isn't there, can't be read, or isn't that of the folder's name."""
    try:
        with open(folder / NAME, "rb") as file:
            content = json.loads(file.read(BYTES_MAX))
        files = tuple(Stored(str(f["name"]), int(f["bytes"]), str(f["sha256"])) for f in content["files"])
        manifest = Manifest(files, str(content["source"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return manifest if manifest.digest == folder.name else None


def made_at(folder: Path) -> tuple[int, int]:
    """Tells an entry from one of the same digest that was put in its place: its manifest is written once."""
    try:
        status = os.lstat(folder / NAME)
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def complete(folder: Path, manifest: Manifest) -> bool:
    """Whether all files are there with their sizes; doesn't read them."""
    try:
        for file in manifest.files:
            status = os.lstat(folder / file.name)
            if not stat.S_ISREG(status.st_mode) or status.st_size != file.bytes:
                return False
    except OSError:
        return False
    return True


def intact(folder: Path, manifest: Manifest) -> bool:
    """Whether all files have the content that they came with; reads them."""
    try:
        return complete(folder, manifest) and all(
            hash_file(folder / file.name) == file.sha256 for file in manifest.files
        )
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """Waits until the folder's names are on the disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
