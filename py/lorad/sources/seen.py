"""What a source had when it was last read, so that the same isn't fetched again: commit, or ETags, to digest.

Only for sources that name their content (a hub's commit, strong ETags); others are always read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from lorad.models.files import write_atomically
from lorad.sources.files import Item

NOTES = 1000
"""Sources that are read between two looks for those whose entry is gone."""


class Seen:
    """A small file for each source in one folder. Losing one costs a download."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes = 0
        folder.mkdir(mode=0o700, exist_ok=True)

    def digest(self, source: str, items: Sequence[Item]) -> str | None:
        """The entry that `source` gave when it had exactly these items."""
        found = self._read(self._file(source))
        if found.get("source") == source and found.get("items") == fingerprint(items) is not None:
            return found.get("digest")
        return None

    def note(self, source: str, items: Sequence[Item], digest: str) -> bool:
        """`source` has these items, which are the entry `digest`. True if it's time to call `forget`."""
        if (known := fingerprint(items)) is None:
            return False
        self._notes += 1
        text = json.dumps({"source": source, "items": known, "digest": digest})
        try:
            write_atomically(self._file(source), text.encode())
        except OSError:
            return False
        return self._notes % NOTES == 0

    def forget(self, kept: set[str]) -> None:
        """Removes what leads to none of the digests `kept`."""
        for file in self._folder.iterdir():
            if self._read(file).get("digest") not in kept:
                file.unlink(missing_ok=True)

    @staticmethod
    def _read(file: Path) -> dict[str, str]:
        try:
            found = json.loads(file.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _file(self, source: str) -> Path:
        return self._folder / hashlib.sha256(source.encode()).hexdigest()[:32]


def fingerprint(items: Sequence[Item]) -> str | None:
    """The same for the same content only; None if a tag doesn't promise that."""
    if not all(item.strong and item.tag and item.bytes is not None for item in items):
        return None
    return hashlib.sha256(json.dumps([[item.name, item.bytes, item.tag] for item in items]).encode()).hexdigest()
