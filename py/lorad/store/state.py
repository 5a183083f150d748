"""`StateFile`: the adapters and aliases that were asked for, so that a restart comes back to them.

Every change is on the disk when its call returns. What a server was killed in the middle of is either there in full or
not at all: one statement a change.

A file that is deleted or replaced beneath a running server is noticed by its inode. What the server was asked for
stands: it's written anew, in place of this base's rows in whatever is there now.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lorad.errors import Unavailable
from lorad.models.files import data_folder
from lorad.store.lock import lock_path, take
from lorad.store.opened import BUSY_SECONDS, Opened, identity
from lorad.store.rescue import Rescued

log = logging.getLogger("lorad.server")

STATE_FILE = "state.sqlite"
"""In the data folder, unless an option says else."""


def state_path(option: str) -> Path:
    """The state file that an option names, "": the one in the data folder."""
    return Path(option).expanduser() if option else data_folder() / STATE_FILE


class AdapterRow(NamedTuple):
    """One name, as it was asked for."""

    name: str
    source: str
    """Where the content in force came from; "": a first load that hasn't ended."""
    digest: str
    """Of that content."""
    generation: str
    pinned: bool
    wanted_source: str
    """A load that was accepted and hasn't ended; "": none."""
    wanted_digest: str
    """What its content must be, if that was said."""
    wanted_pinned: bool


class StateFile:
    """One base's rows of a SQLite file. Not thread-safe: one thread makes all calls after the first.

    The file may be shared by servers of different bases; a second server of the same base is refused.
    """

    def __init__(self, path: Path, base: str, *, now: Callable[[], float] = time.time) -> None:
        """`base`: the base model's digest."""
        self._base = base
        self._now = now
        self._path = path
        self._lock: int | None = None
        self._lost: Rescued | None = None
        """What was in a file that is gone and couldn't be written anew yet."""
        self._open()

    def adapters(self) -> list[AdapterRow]:
        """All names, in the order in which they were first asked for."""
        return [row for _, row in _rows(self._opened.database, "WHERE base = ?", self._base)]

    def aliases(self) -> dict[str, str]:
        """Aliases and what they stand for."""
        rows = self._opened.database.execute("SELECT alias, target FROM aliases WHERE base = ?", (self._base,))
        return dict(rows.fetchall())

    def want(self, name: str, source: str, digest: str, *, pinned: bool) -> None:
        """A load has been accepted."""
        self._change(
            "INSERT INTO adapters (base, name, wanted_pinned, wanted_source, wanted_digest, created) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (base, name) DO UPDATE SET wanted_source = excluded.wanted_source, "
            "wanted_digest = excluded.wanted_digest, wanted_pinned = excluded.wanted_pinned",
            (self._base, name, pinned, source, digest, self._now()),
        )

    def keep(self, name: str, source: str, digest: str, generation: str) -> None:
        """That load has ended: this content is in force."""
        self._change(
            "UPDATE adapters SET source = ?, digest = ?, generation = ?, pinned = wanted_pinned, wanted_source = '', "
            "wanted_digest = '' WHERE base = ? AND name = ?",
            (source, digest, generation, self._base, name),
        )

    def give_up(self, name: str) -> None:
        """That load has failed: what was in force stays, and a name that had nothing is forgotten."""
        # Each of them is enough by itself: what is left between them is taken up at the next start.
        self._change(
            "UPDATE adapters SET wanted_source = '', wanted_digest = '', wanted_pinned = pinned "
            "WHERE base = ? AND name = ? AND source != ''",
            (self._base, name),
        )
        self._change("DELETE FROM adapters WHERE base = ? AND name = ? AND source = ''", (self._base, name))

    def remove(self, name: str) -> None:
        """An unload has been accepted."""
        self._change("DELETE FROM adapters WHERE base = ? AND name = ?", (self._base, name))

    def pin(self, name: str, pinned: bool) -> None:
        """Whether the name's content is to be kept in pages."""
        self._change(
            "UPDATE adapters SET pinned = ?, wanted_pinned = ? WHERE base = ? AND name = ?",
            (pinned, pinned, self._base, name),
        )

    def alias(self, alias: str, target: str) -> None:
        """Lets a further name stand for `target`."""
        self._change(
            "INSERT INTO aliases (base, alias, target) VALUES (?, ?, ?) "
            "ON CONFLICT (base, alias) DO UPDATE SET target = excluded.target",
            (self._base, alias, target),
        )

    def remove_alias(self, alias: str) -> None:
        """Takes it away."""
        self._change("DELETE FROM aliases WHERE base = ? AND alias = ?", (self._base, alias))

    def close(self) -> None:
        """Lets another server of the same base have the file."""
        self._opened.close()
        if self._lock is not None:
            os.close(self._lock)

    def look(self) -> None:
        """Whether the file is still the one that was opened; if not, writes all anew. Each change looks by itself."""
        if self._lost is None:
            there = identity(self._path)
            if there == self._opened.identity:
                return
            how = "deleted" if there is None else "replaced by another"
            log.error("the state file %s was %s: what was asked for is written anew", self._path, how)
            try:
                self._lost = self._rescue(deleted=there is None)
            except sqlite3.Error as error:
                raise Unavailable(f"what the state file had can't be read: {error}", code="state_write") from None
        self._open()
        try:
            self._lost.write(self._opened.database)
        except sqlite3.Error as error:
            self._opened.close()
            raise Unavailable(f"the state file can't be written anew: {error}", code="state_write") from None
        self._lost = None

    def _rescue(self, *, deleted: bool) -> Rescued:
        """What was in a file that has no name any more. Closes it."""
        rescued = Rescued(self._opened.database, self._base, deleted=deleted)
        self._opened.leave()
        return rescued

    def _open(self) -> None:
        path = self._path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._lock is None or identity(lock_path(path, self._base)) != identity(self._lock):
                held, self._lock = self._lock, take(path, self._base)
                if held is not None:
                    os.close(held)
            self._opened = Opened(path, make=True)
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(f"the state file {path} can't be used: {error}", code="state_file") from None

    def _change(self, statement: str, values: tuple[object, ...]) -> None:
        self.look()
        try:
            self._opened.database.execute(statement, values)
        except sqlite3.Error as error:
            raise Unavailable(f"it can't be written down in the state file: {error}", code="state_write") from None


def by_base(path: Path) -> list[tuple[str, AdapterRow]]:
    """All rows of a state file with the digests of their bases. Looks only, also while servers use it."""
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        try:
            return _rows(database, "")
        finally:
            database.close()
    except sqlite3.Error as error:
        raise Unavailable(f"the state file {path} can't be read: {error}", code="state_file") from None


def _rows(database: sqlite3.Connection, where: str, *values: str) -> list[tuple[str, AdapterRow]]:
    columns = "base, name, source, digest, generation, pinned, wanted_source, wanted_digest, wanted_pinned"
    rows = database.execute(f"SELECT {columns} FROM adapters {where} ORDER BY base, created, name", values)
    return [
        (base, AdapterRow(name, source, digest, generation, bool(pinned), wanted, wanted_digest, bool(wanted_pinned)))
        for base, name, source, digest, generation, pinned, wanted, wanted_digest, wanted_pinned in rows
    ]
