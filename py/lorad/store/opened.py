"""`Opened`: a state file as SQLite has it open, and whether its name still leads to it.

A file that is deleted or replaced beneath its users is noticed by its inode: SQLite by itself would go on writing to
the one that has no name any more. Worse, its journal and the journal's index lie beside it under names of their own,
which may still be there: SQLite would bring what the old journal has into the new file.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from lorad.store.migrations import migrate

BUSY_SECONDS = 10.0
"""How long a change waits for another process's in the same file."""

BUSY_PAUSE_SECONDS = 0.01

Identity = tuple[int, int]


class Opened:
    """One connection. Errors are SQLite's and the system's own."""

    def __init__(self, path: Path, *, make: bool) -> None:
        """Brings the file to the newest version, if need be. `make`: also makes one that isn't there."""
        self._path = path
        self._journals = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]
        if make:
            with suppress(FileExistsError):
                # Its owner's only: it has keys' hashes, and who used what. SQLite gives the journals the same mode.
                # Nothing is opened here, as a descriptor that is closed would take SQLite's locks on the file with it.
                os.mknod(path, 0o600)
        uri = f"{path.absolute().as_uri()}?mode=rw"
        self.database = sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._use_journal()
            self.database.execute("PRAGMA synchronous = FULL")
            self.database.execute("PRAGMA foreign_keys = ON")
            migrate(self.database, str(path))
        except BaseException:
            self.database.close()
            raise
        self.identity, self._own_journals = identity(path), [identity(one) for one in self._journals]

    def _use_journal(self) -> None:
        """SQLite waits for others with everything but this, where two open a new file at once."""
        ends = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self.database.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                    raise
                time.sleep(BUSY_PAUSE_SECONDS)

    def close(self) -> None:
        """Lets go of it."""
        self.database.close()

    def leave(self) -> None:
        """Lets go of a file that has lost its name, before one is opened that has it now. Whatever name it has instead,
        it's complete; its journals say nothing to the other one."""
        self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        for journal, own in zip(self._journals, self._own_journals, strict=True):
            # Not another one's: somebody may have left before, and the new file have been opened.
            if own is not None and identity(journal) == own:
                journal.unlink(missing_ok=True)
        self.database.close()


def identity(file: Path | int) -> Identity | None:
    """Device and inode of a path or descriptor; None: nothing is there."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino
