"""The state file's tables, as steps from each version to the next."""

from __future__ import annotations

import sqlite3

from lorad.errors import Unavailable

STEPS = (
    """
    CREATE TABLE adapters (
        base TEXT NOT NULL,              -- digest of the base that it was registered for
        name TEXT NOT NULL,
        source TEXT NOT NULL DEFAULT '', -- where the content in force came from; '': none is in force yet
        digest TEXT NOT NULL DEFAULT '', -- of that content, in the adapter cache
        generation TEXT NOT NULL DEFAULT '',
        pinned INTEGER NOT NULL DEFAULT 0,
        wanted_source TEXT NOT NULL DEFAULT '', -- a load that was accepted and hasn't ended
        wanted_digest TEXT NOT NULL DEFAULT '',
        wanted_pinned INTEGER NOT NULL DEFAULT 0,
        created REAL NOT NULL,
        PRIMARY KEY (base, name)
    ) STRICT;
    CREATE TABLE aliases (
        base TEXT NOT NULL,
        alias TEXT NOT NULL,
        target TEXT NOT NULL,
        PRIMARY KEY (base, alias)
    ) STRICT;
    """,
)
"""Each is run once, in order. A step that was released is never changed; a new one is added."""


def migrate(database: sqlite3.Connection, path: str) -> None:
    """Brings a database to the newest version, each step as a whole or not at all."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > len(STEPS):
        raise Unavailable(
            f"{path} is of version {version}, this lorad knows up to {len(STEPS)}: it was written by a newer one",
            code="state_version",
        )
    for number in range(version, len(STEPS)):
        database.executescript(f"BEGIN IMMEDIATE; {STEPS[number]} PRAGMA user_version = {number + 1}; COMMIT;")
