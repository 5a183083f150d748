"""Adapters on the disk, each in a folder whose name is the digest of its content.

    adapters/
      <digest>/            the adapter's files and .manifest.json; never changes, appears and vanishes by one rename
      .staging/            what is being fetched, what is being removed
      .seen/               source and tags → digest
      .lock, .holds        between processes

The folder is the truth; several caches, in several processes, may share it. An entry is evicted, least recently used
first, when another one needs its bytes, unless somebody holds it.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from lorad.errors import AdapterRejected
from lorad.sources.address import Resolve, resolve
from lorad.sources.fetch import fetch
from lorad.sources.files import Item
from lorad.sources.locks import FolderLock, Holds
from lorad.sources.manifest import Manifest, complete, intact, made_at, read_manifest, sync_folder, write_manifest
from lorad.sources.reject import malformed, reject
from lorad.sources.seen import Seen
from lorad.sources.source import Source
from lorad.sources.staging import Staging
from lorad.sources.transfer import DiskFailed, Transfer
from lorad.sources.turns import Turns

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Entry:
    """An adapter in the cache. Its folder stays as long as it's held."""

    digest: str
    path: Path
    """The folder; a .gguf file that was named by itself lies in it too."""
    bytes: int
    source: str
    """Where it came from, with the commit if the source has one."""
    files: tuple[str, ...]
    """Names, ascending."""
    used: float = field(default=0.0, compare=False)
    """When it was last found, in seconds of the cache's clock."""


class AdapterCache:
    """All methods may be called on any thread. `now` gives seconds since the epoch, `disk_free` bytes of the disk."""

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        *,
        now: Callable[[], float] = time.time,
        ask: Resolve = resolve,
        disk_free: Callable[[Path], int] | None = None,
    ) -> None:
        self.folder, self.bytes_max = folder, bytes_max
        self._now, self._ask, self._disk_free = now, ask, disk_free or _disk_free
        self._turns = Turns()
        self._known: dict[str, Manifest] = {}
        with _disk_errors(folder.name):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = FolderLock(folder / ".lock")
            self._holds = Holds(folder / ".holds")
            self._staging = Staging(folder / ".staging", self._lock)
            self._seen = Seen(folder / ".seen")
            self._staging.clean()
            for digest in self._digests():
                made, manifest = made_at(folder / digest), read_manifest(folder / digest)
                if manifest is None or not complete(folder / digest, manifest):
                    self._drop(digest, made)
            self._seen.forget(set(self._digests()))

    def obtain(
        self,
        source: Source,
        digest: str | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        cancelled: Callable[[], bool] = lambda: False,
        *,
        hold: bool = False,
    ) -> Entry:
        """The adapter of `source`, fetched unless it's here. Blocks; refusals are `AdapterRejected`.

        With `digest`, an entry of that digest is taken without asking the source, and other content is refused.
        Without, the source is always asked what it has now. `on_progress(done, total)` is called on this thread with
        bytes, `total` 0 if it isn't known; `done` begins anew if the source changed in between. `hold`: the entry is
        held, as by `hold`, before anybody could evict it.
        """
        if digest is not None:
            self._check(digest)
            if (entry := self._found(digest, hold)) is not None:
                return entry
        transfer = Transfer(source.text, source.policy, on_progress, cancelled)
        with self._turns.turn(source.text, transfer), _disk_errors(source.text), self._staging.folder() as folder:
            return self._fetch(source, digest, folder, transfer, hold)

    def find(self, digest: str) -> Entry | None:
        """The entry, if all its files are there with their sizes; a damaged one is dropped. Counts as a use."""
        self._check(digest)
        return self._found(digest, hold=False)

    def verify(self, digest: str) -> Entry | None:
        """As `find`, but all files are read and held against their hashes."""
        self._check(digest)
        path = self.folder / digest
        made, manifest = made_at(path), read_manifest(path)
        if manifest is None or not intact(path, manifest):
            self._drop(digest, made)
        return self._found(digest, hold=False)

    def hold(self, digest: str) -> Entry | None:
        """Finds the entry and keeps it until as many calls of `release`; None if it isn't there: nothing is held."""
        self._check(digest)
        return self._found(digest, hold=True)

    def release(self, digest: str) -> None:
        """Undoes one `hold`; ValueError if there was none."""
        with self._lock:
            self._holds.remove(digest)

    def held(self, digest: str) -> int:
        """How often it's held in this process."""
        return self._holds.count(digest)

    def listing(self) -> list[Entry]:
        """All entries, least recently used first. Looks at no file but the manifests."""
        found = [entry for entry in map(self._entry, self._digests()) if entry is not None]
        return sorted(found, key=lambda entry: (entry.used, entry.digest))

    def evict_to(self, bytes: int) -> int:
        """Evicts entries until all take at most `bytes`, as far as they aren't held; returns what they take then."""
        with self._lock:
            gone, total = self._evict(bytes)
        for path in gone:
            self._staging.remove(path)
        return total

    def close(self) -> None:
        """Lets go of all holds."""
        self._holds.close()

    def _fetch(self, source: Source, digest: str | None, folder: Path, transfer: Transfer, hold: bool) -> Entry:
        entry: Entry | None = None

        def known(items: Sequence[Item]) -> bool:
            nonlocal entry
            found = self._seen.digest(source.text, items)
            if found is not None and _DIGEST.fullmatch(found):
                self._expect(source, digest, found)
                entry = self._found(found, hold)
            return entry is not None

        fetched = fetch(source, folder, transfer, known=known, room=self._room, ask=self._ask)
        if entry is not None:
            return replace(entry, source=fetched.resolved)
        manifest = Manifest(tuple(sorted(fetched.files)), fetched.resolved)
        self._expect(source, digest, manifest.digest)
        write_manifest(folder, manifest)
        if (self.folder / manifest.digest).exists():
            # Its bytes are at hand now, so whether they are still the same may be asked.
            self.verify(manifest.digest)
        transfer.check()
        entry = self._commit(folder, manifest, hold)
        if self._seen.note(source.text, fetched.items, manifest.digest):
            self._seen.forget(set(self._digests()))
        return replace(entry, source=fetched.resolved)

    def _commit(self, folder: Path, manifest: Manifest, hold: bool) -> Entry:
        """Makes a complete staging folder an entry, unless the same was made meanwhile."""
        gone: list[Path] = []
        with self._lock:
            entry = self._entry(manifest.digest)
            if entry is None:
                held = sum(other.bytes for other in self.listing() if self._holds.held(other.digest))
                if held + manifest.bytes > self.bytes_max:
                    raise reject(
                        "cache_full",
                        f"the adapter has {manifest.bytes} bytes; of the cache's {self.bytes_max}, {held} are in use",
                    )
                gone, _ = self._evict(self.bytes_max - manifest.bytes)
                if (self.folder / manifest.digest).exists():
                    gone.append(self._staging.take(self.folder / manifest.digest))
                os.rename(folder, self.folder / manifest.digest)
                sync_folder(self.folder)
                entry = self._entry(manifest.digest)
            if entry is None:
                raise OSError(errno.EIO, "the entry isn't where it was put")
            self._touch(entry.path)
            if hold:
                self._holds.add(entry.digest)
        for path in gone:
            self._staging.remove(path)
        return entry

    def _room(self, count: int) -> None:
        """Refuses `count` further bytes that can't be staged or kept; gives the disk what it lacks for them.

        What the cache's limit lacks is only evicted when they're here: they may turn out to be an entry's.
        """
        if count > self.bytes_max:
            raise reject("cache_full", f"the adapter has {count} bytes, the cache takes {self.bytes_max}")
        free = self._disk_free(self.folder)
        if free >= count:
            return
        entries = self.listing()
        with self._lock:
            loose = sum(entry.bytes for entry in entries if not self._holds.held(entry.digest))
        if free + loose >= count:
            self.evict_to(sum(entry.bytes for entry in entries) - (count - free))
            free = self._disk_free(self.folder)
        if free < count:
            raise reject("cache_full", f"the adapter has {count} bytes, the disk has {free} left")

    def _evict(self, bytes: int) -> tuple[list[Path], int]:
        """Under the lock: takes entries out of sight; returns what is to be removed, and bytes of those that stay."""
        entries = self.listing()
        total, gone = sum(entry.bytes for entry in entries), []
        for entry in entries:
            if total <= bytes:
                break
            if not self._holds.held(entry.digest):
                gone.append(self._staging.take(entry.path))
                self._known.pop(entry.digest, None)
                total -= entry.bytes
        return gone, total

    def _found(self, digest: str, hold: bool) -> Entry | None:
        path = self.folder / digest
        with self._lock:
            manifest = read_manifest(path)
            if manifest is not None and complete(path, manifest):
                self._known[digest] = manifest
                self._touch(path)
                if hold:
                    self._holds.add(digest)
                return self._entry(digest)
            if not path.exists():
                return None
            gone = self._staging.take(path)
            self._known.pop(digest, None)
        self._staging.remove(gone)
        return None

    def _drop(self, digest: str, made: tuple[int, int]) -> None:
        """Removes an entry that was found damaged, unless it isn't the same any more."""
        with self._lock:
            path = self.folder / digest
            if not path.exists() or made_at(path) != made:
                return
            gone = self._staging.take(path)
            self._known.pop(digest, None)
        self._staging.remove(gone)

    def _entry(self, digest: str) -> Entry | None:
        """From the manifest alone, which is read once: an entry's content never changes."""
        path = self.folder / digest
        try:
            used = os.stat(path).st_mtime
        except OSError:
            self._known.pop(digest, None)
            return None
        manifest = self._known.get(digest) or read_manifest(path)
        if manifest is None:
            return None
        self._known[digest] = manifest
        names = tuple(file.name for file in manifest.files)
        return Entry(digest, path, manifest.bytes, manifest.source, names, used)

    def _digests(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if _DIGEST.fullmatch(name)]

    def _touch(self, path: Path) -> None:
        now = self._now()
        with suppress(OSError):
            os.utime(path, (now, now))

    @staticmethod
    def _expect(source: Source, digest: str | None, found: str) -> None:
        if digest is not None and digest != found:
            raise reject("source_digest", f"{source.text} has the digest {found}, expected was {digest}")

    @staticmethod
    def _check(digest: str) -> None:
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise malformed("source_digest", f"a digest has 64 hexadecimal digits, got {digest!r}")


@contextmanager
def _disk_errors(what: str) -> Iterator[None]:
    """What the disk says, as a refusal."""
    try:
        yield
    except (OSError, DiskFailed) as failure:
        error = failure.error if isinstance(failure, DiskFailed) else failure
        raise _disk_refusal(what, error) from None


def _disk_refusal(what: str, error: OSError) -> AdapterRejected:
    reason = os.strerror(error.errno or 0)
    if error.errno in _FULL:
        return reject("cache_full", f"{what}: the cache's disk is full ({reason})")
    return reject("cache_unusable", f"{what}: the cache can't be written ({reason})")


def _disk_free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
