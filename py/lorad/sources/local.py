"""A folder or a .gguf file below a root of this machine. It's copied, so that a trainer may go on writing there."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from lorad.errors import LoradError
from lorad.sources.beneath import Beneath
from lorad.sources.files import CONFIG, Item, choose
from lorad.sources.reject import Changed, reject
from lorad.sources.source import Source
from lorad.sources.transfer import Sink, Transfer

SETTLED_SECONDS = 0.05
"""Times of files move in ticks: one that was written less than this ago may be written again with the same times."""


class LocalFolder:
    """An adapter's files on this machine; they stay open from the first look to the end."""

    def __init__(self, source: Source, now: Callable[[], float] = time.time) -> None:
        self.resolved = source.text
        self._where, self._now = source.text, now
        self._files: dict[str, int] = {}
        self._single = ""
        *parents, last = source.path.split("/")
        for root in source.roots:
            self._place = Beneath(root, source.text)
            try:
                self._place.enter(parents)
                kind = self._place.kind([last])
                if kind == stat.S_IFDIR:
                    self._place.enter([last])
                elif kind == stat.S_IFREG and last.endswith(".gguf"):
                    self._single = last
                elif kind:
                    raise reject("source_missing", f"{self._where!r} is no folder and no .gguf file")
                if kind:
                    return
            except FileNotFoundError:
                pass
            except BaseException:
                self._place.close()
                raise
            self._place.close()
        raise reject("source_missing", f"there is no folder and no .gguf file {self._where!r}")

    def items(self, transfer: Transfer) -> tuple[Item, ...]:
        """The adapter's files as they are now."""
        names = [self._single] if self._single else choose(self._place.names(), repr(self._where))
        if len(names) > transfer.policy.files_max:
            return tuple(Item(name, None) for name in names)
        return tuple(self._item(name, transfer) for name in names)

    def read(self, item: Item, sink: Sink, transfer: Transfer) -> None:
        """Copies a file, which has the bytes it had at `items`, or `Changed` is raised."""
        size = item.bytes or 0
        # One more than there were, so that a file that grows all the time ends too.
        sink.copy(self._files[item.name], size + 1)
        if sink.written != size:
            raise Changed(f"{item.name} had {size} bytes and has {'more' if sink.written > size else sink.written}")

    def close(self) -> None:
        """Closes all that is open."""
        for file in self._files.values():
            os.close(file)
        self._files = {}
        self._place.close()

    def _item(self, name: str, transfer: Transfer) -> Item:
        try:
            file = self._place.open(name)
        except FileNotFoundError:
            raise Changed(f"{name} isn't there any more") from None
        try:
            status = os.fstat(file)
            if abs(self._now() - max(status.st_mtime, status.st_ctime)) < SETTLED_SECONDS:
                transfer.wait(SETTLED_SECONDS)
                status = os.fstat(file)
        except BaseException:
            os.close(file)
            raise
        if name in self._files:
            os.close(file)
        else:
            self._files[name] = file
        times = (status.st_mtime_ns, status.st_ctime_ns)
        return Item(name, status.st_size, ":".join(map(str, (status.st_dev, status.st_ino, status.st_size, *times))))


def list_adapters(root: Path, parts: list[str], where: str, transfer: Transfer) -> list[str]:
    """Names of the folders at `parts` below `root` that have an adapter's config or a .gguf file."""
    place = Beneath(root, where)
    try:
        place.enter(parts)
        return [name for name in place.names() if _is_adapter(root, [*parts, name], where, transfer)]
    except FileNotFoundError:
        return []
    finally:
        place.close()


def _is_adapter(root: Path, parts: list[str], where: str, transfer: Transfer) -> bool:
    transfer.check()
    place = Beneath(root, where)
    try:
        place.enter(parts)
        return any(name == CONFIG or name.endswith(".gguf") for name in place.names())
    except (FileNotFoundError, LoradError, Changed):
        return False
    finally:
        place.close()
