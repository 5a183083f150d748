"""From a source to a staging folder: list, read, list again; anew once if it changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from lorad.sources.address import Resolve, resolve
from lorad.sources.files import Item, check_sizes
from lorad.sources.local import LocalFolder
from lorad.sources.objects import ObjectFolder
from lorad.sources.reject import Changed, reject
from lorad.sources.source import Source, check_name
from lorad.sources.transfer import Sink, Stored, Transfer
from lorad.sources.webfolder import WebFolder


class Folder(Protocol):
    """An adapter's files where they are. Any call may raise `Changed`."""

    resolved: str
    """The source with what it means now: a commit instead of a branch."""

    def items(self, transfer: Transfer) -> tuple[Item, ...]:
        """The files of the adapter, by name; asked twice, before and after reading."""

    def read(self, item: Item, sink: Sink, transfer: Transfer) -> None:
        """Writes a file to `sink`, all of it and as `item` says."""

    def close(self) -> None:
        """Ends what is open."""


class Fetched(NamedTuple):
    """What a source had. `files` are on the disk, or empty if `known` says that they are already."""

    resolved: str
    items: tuple[Item, ...]
    files: tuple[Stored, ...]


def open_source(source: Source, transfer: Transfer, ask: Resolve = resolve) -> Folder:
    """The files of a source of any kind."""
    if source.scheme == "file":
        return LocalFolder(source)
    if source.scheme == "hf":
        from lorad.sources.hub import HubFolder

        return HubFolder(source, transfer, ask)
    if source.scheme in ("http", "https"):
        return WebFolder(source, ask)
    return ObjectFolder(source)


def fetch(
    source: Source,
    into: Path,
    transfer: Transfer,
    *,
    known: Callable[[Sequence[Item]], bool] = lambda items: False,
    room: Callable[[int], None] = lambda count: None,
    ask: Resolve = resolve,
) -> Fetched:
    """Reads a source's files into the empty folder `into`.

    `known`: whether files of these tags are in the cache, so that nothing is read. `room` is called with the bytes to
    come (as far as they're known) and may refuse them.
    """
    for last in (False, True):
        try:
            return _once(source, into, transfer, known, room, ask)
        except Changed as change:
            if last:
                raise reject(
                    "source_changed", f"{source.text}: {change}; so it was twice: try again when it's complete"
                ) from None
            for file in into.iterdir():
                file.unlink()
    raise AssertionError


def _once(
    source: Source,
    into: Path,
    transfer: Transfer,
    known: Callable[[Sequence[Item]], bool],
    room: Callable[[int], None],
    ask: Resolve,
) -> Fetched:
    transfer.check()
    opened = open_source(source, transfer, ask)
    try:
        items = tuple(sorted(opened.items(transfer)))
        total = check_sizes(items, source.policy, source.text)
        if known(items):
            return Fetched(opened.resolved, items, ())
        room(total or 0)
        transfer.begin(total)
        files = []
        for item in items:
            with Sink(into, check_name(item.name, "the file"), transfer) as sink:
                opened.read(item, sink, transfer)
                files.append(sink.finish())
        if tuple(sorted(opened.items(transfer))) != items:
            raise Changed("its files changed while they were read")
    finally:
        opened.close()
    return Fetched(opened.resolved, items, tuple(files))
