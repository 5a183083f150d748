"""`Rescued`: the rows of a state file that has lost its name, and how they get into the one that has it now."""

from __future__ import annotations

import sqlite3
from typing import Any

OF_A_BASE = ("adapters", "aliases")
"""Tables whose rows belong to one base's server, which writes no others."""

OF_ALL = ("tenants", "keys", "usage")
"""Likewise of all; keys name tenants."""


class Rescued:
    """Read from the old file, which may be closed then."""

    def __init__(self, database: sqlite3.Connection, base: str, *, deleted: bool) -> None:
        """`deleted`: nothing has the name, so all rows are wanted. Else what has it now is somebody's intent, and only
        this base's rows are."""
        self._base = base
        self._number = 0
        """The highest that a tenant was given."""
        where, values = ("", ()) if deleted else ("WHERE base = ?", (base,))
        self._rows: dict[str, list[tuple[Any, ...]]] = {
            table: database.execute(f"SELECT * FROM {table} {where}", values).fetchall() for table in OF_A_BASE
        }
        if deleted:
            self._rows |= {table: database.execute(f"SELECT * FROM {table}").fetchall() for table in OF_ALL}
            (self._number,) = database.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()

    def write(self, database: sqlite3.Connection) -> None:
        """Writes them, all or nothing. Others may have written theirs meanwhile, which stay."""
        database.execute("BEGIN IMMEDIATE")
        for table in OF_A_BASE:
            database.execute(f"DELETE FROM {table} WHERE base = ?", (self._base,))
        for table, rows in self._rows.items():
            for row in rows:
                database.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        if self._number:
            # A tenant's number isn't given again, though its row may be gone.
            (number,) = database.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()
            database.execute("DELETE FROM sqlite_sequence")
            database.execute("INSERT INTO sqlite_sequence VALUES ('tenants', ?)", (max(number, self._number),))
        database.execute("COMMIT")
