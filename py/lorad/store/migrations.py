"""The state file's tables, as steps from each version to the next."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

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
    """
    CREATE TABLE tenants (
        number INTEGER PRIMARY KEY AUTOINCREMENT, -- never given again
        name TEXT NOT NULL UNIQUE,
        adapters TEXT NOT NULL,                   -- JSON: names and beginnings with a *
        base INTEGER NOT NULL,
        weight INTEGER NOT NULL,
        requests_per_minute INTEGER NOT NULL,     -- of this and the following, 0: no limit
        tokens_per_minute INTEGER NOT NULL,
        running_max INTEGER NOT NULL,
        waiting_max INTEGER NOT NULL,
        pages_max INTEGER NOT NULL,
        adapters_max INTEGER NOT NULL,
        created REAL NOT NULL
    ) STRICT;
    CREATE TABLE keys (
        hash TEXT PRIMARY KEY,                    -- SHA-256 of the key
        tenant TEXT REFERENCES tenants (name) ON DELETE CASCADE, -- NULL: an operator's
        label TEXT NOT NULL,
        created REAL NOT NULL
    ) STRICT;
    CREATE TABLE usage (
        base TEXT NOT NULL,                       -- digest of the base that served it
        tenant TEXT NOT NULL,                     -- stays when the tenant is gone
        model TEXT NOT NULL,
        hour INTEGER NOT NULL,                    -- since 1970
        requests INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL,
        generation_tokens INTEGER NOT NULL,
        seconds REAL NOT NULL,
        loads INTEGER NOT NULL,
        load_bytes INTEGER NOT NULL,
        load_seconds REAL NOT NULL,
        PRIMARY KEY (base, tenant, model, hour)
    ) STRICT;
    """,
)
"""Each is run once, in order. A step that was released is never changed; a new one is added."""


def migrate(database: sqlite3.Connection, path: str) -> None:
    """Brings a database to the newest version, each step as a whole or not at all, whoever else does so meanwhile."""
    while (version := _version(database, path)) < len(STEPS):
        database.execute("BEGIN IMMEDIATE")
        try:
            if _version(database, path) == version:
                for statement in _statements(STEPS[version]):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {version + 1}")
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")


def _version(database: sqlite3.Connection, path: str) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > len(STEPS):
        raise Unavailable(
            f"{path} is of version {version}, this lorad knows up to {len(STEPS)}: it was written by a newer one",
            code="state_version",
        )
    return int(version)


def _statements(script: str) -> Iterator[str]:
    """One after the other: `executescript` would end the transaction that they belong to."""
    statement = ""
    for part in script.split(";"):
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
