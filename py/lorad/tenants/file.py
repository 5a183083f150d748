"""`TenantFile`: tenants, keys and usage in the state file, for a server that reads it and commands that change it.

Several processes may have the file open: each call is one transaction, and a server notices what commands change.
Each call looks whether the name still leads to the file that was opened. Another one that has the name is used from
then on; where none has it, calls are refused until the server's `StateFile` has written all anew. Nobody else makes a
file meanwhile: the server would take it for what is meant to hold from then on, and its tenants were gone.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lorad.errors import Conflict, NotFound, Unavailable
from lorad.store.lock import is_used
from lorad.store.opened import Opened, identity
from lorad.tenants.tenant import Limits, Tenant, check_label, check_tenant

KEY_PREFIX = "lorad-"
ID_DIGITS = 12
"""Of a key's hash: what it's called in lists."""
_LIMITS = ", ".join(Limits._fields)


class KeyRow(NamedTuple):
    """A key, without what would open anything."""

    hash: str
    """SHA-256, hexadecimal. The key has 256 random bits, so a slow hash would add nothing."""
    tenant: str | None
    """None: an operator's."""
    label: str
    created: float

    @property
    def id(self) -> str:
        """Its short name."""
        return self.hash[:ID_DIGITS]


class Used(NamedTuple):
    """What was used: by one tenant of one model within one hour, or sums of that."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those that were found in the prefix cache."""
    generation_tokens: int = 0
    seconds: float = 0.0
    """From arrival to end, summed over requests."""
    loads: int = 0
    load_bytes: int = 0
    load_seconds: float = 0.0
    """Of adapters that were brought into pages for these requests."""

    def plus(self, other: Used) -> Used:
        """Field by field."""
        return Used._make(mine + its for mine, its in zip(self, other, strict=True))


class UsedRow(NamedTuple):
    """A line of the ledger."""

    base: str
    """Digest of the base model."""
    tenant: str
    model: str
    hour: int
    """Since 1970."""
    used: Used


def key_hash(key: str | bytes) -> str:
    """What a key is found by."""
    return hashlib.sha256(key if isinstance(key, bytes) else key.encode()).hexdigest()


class TenantFile:
    """Not thread-safe: one thread at a time."""

    def __init__(self, path: Path, *, make: bool = True, now: Callable[[], float] = time.time) -> None:
        """`make`: also makes a file that isn't there, unless a server uses it."""
        self._now = now
        self._path = path
        with self._refusals():
            makes = identity(path) is None
            if makes and (not make or is_used(path)):
                raise self._missing()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._opened: Opened | None = Opened(path, make=makes)

    def close(self) -> None:
        """Lets go of the file."""
        if self._opened is not None:
            self._opened.close()

    def version(self) -> object:
        """Another one whenever another process has changed something, or put another file in the place of this one."""
        with self._using() as database:
            return identity(self._path), database.execute("PRAGMA data_version").fetchone()[0]

    # tenants

    def tenants(self) -> list[Tenant]:
        """All of them, by number."""
        with self._using() as database:
            rows = database.execute(
                f"SELECT name, number, adapters, base, weight, {_LIMITS} FROM tenants ORDER BY number"
            ).fetchall()
        return [
            Tenant(name, number, tuple(json.loads(adapters)), bool(base), weight, Limits(*limits))
            for name, number, adapters, base, weight, *limits in rows
        ]

    def tenant(self, name: str) -> Tenant:
        """One of them, or a refusal."""
        for tenant in self.tenants():
            if tenant.name == name:
                return tenant
        raise NotFound(f"there is no tenant {name!r}", code="tenant_not_found", param="tenant")

    def put(self, tenant: Tenant) -> Tenant:
        """Makes a tenant, or changes the one of that name; its number is given here, and kept."""
        check_tenant(tenant.name, tenant.adapters, tenant.weight, tenant.limits)
        limits = tenant.limits._asdict()
        columns = ["name", "adapters", "base", "weight", *limits]
        values = [tenant.name, json.dumps(tenant.adapters), tenant.base, tenant.weight, *limits.values()]
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns[1:])
        with self._using() as database:
            database.execute(
                f"INSERT INTO tenants ({', '.join(columns)}, created) VALUES ({'?, ' * len(values)}?) "
                f"ON CONFLICT (name) DO UPDATE SET {changes}",
                (*values, self._now()),
            )
        return self.tenant(tenant.name)

    def remove(self, name: str) -> None:
        """Takes a tenant and its keys away; its usage stays."""
        number = self.tenant(name).number
        with self._using() as database:
            database.execute("DELETE FROM tenants WHERE number = ?", (number,))

    # keys

    def add_key(self, tenant: str | None, label: str = "") -> tuple[str, KeyRow]:
        """Makes a key, of a tenant or of an operator. It's told this once: the file has its hash."""
        if tenant is not None:
            self.tenant(tenant)
        check_label(label)
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        row = KeyRow(key_hash(key), tenant, label, self._now())
        with self._using() as database:
            database.execute("INSERT INTO keys (hash, tenant, label, created) VALUES (?, ?, ?, ?)", row)
        return key, row

    def keys(self) -> list[KeyRow]:
        """All of them, oldest first."""
        with self._using() as database:
            rows = database.execute("SELECT hash, tenant, label, created FROM keys ORDER BY created, hash")
            return [KeyRow(*row) for row in rows.fetchall()]

    def remove_key(self, id: str) -> KeyRow:
        """Takes a key away, by its id or a beginning of it that no other has."""
        found = [row for row in self.keys() if id and row.hash.startswith(id.lower())]
        if not found:
            raise NotFound(f"there is no key {id!r}", code="key_not_found", param="key")
        if len(found) > 1:
            ids = ", ".join(row.id for row in found)
            raise Conflict(f"{len(found)} keys begin with {id!r}: {ids}", code="key_ambiguous", param="key")
        with self._using() as database:
            database.execute("DELETE FROM keys WHERE hash = ?", (found[0].hash,))
        return found[0]

    # usage

    def add_usage(self, rows: Iterable[UsedRow]) -> None:
        """Adds to the ledger, all or nothing."""
        columns = ["base", "tenant", "model", "hour", *Used._fields]
        sums = ", ".join(f"{column} = {column} + excluded.{column}" for column in Used._fields)
        with self._using() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                database.executemany(
                    f"INSERT INTO usage ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
                    f"ON CONFLICT (base, tenant, model, hour) DO UPDATE SET {sums}",
                    [(row.base, row.tenant, row.model, row.hour, *row.used) for row in rows],
                )
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:  # SQLite itself ends one that met a full disk
                    database.execute("ROLLBACK")
                raise

    def usage(self, since_hour: int = 0) -> list[UsedRow]:
        """The ledger from an hour on, in order."""
        columns = ", ".join(Used._fields)
        with self._using() as database:
            rows = database.execute(
                f"SELECT base, tenant, model, hour, {columns} FROM usage WHERE hour >= ? "
                "ORDER BY hour, tenant, model, base",
                (since_hour,),
            ).fetchall()
        return [UsedRow(base, tenant, model, hour, Used(*used)) for base, tenant, model, hour, *used in rows]

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The file that has the name now."""
        with self._refusals():
            there = identity(self._path)
            if self._opened is not None and self._opened.identity != there:
                self._opened.leave()
                self._opened = None
            if there is None:
                raise self._missing()
            if self._opened is None:
                self._opened = Opened(self._path, make=False)
            yield self._opened.database

    def _missing(self) -> Unavailable:
        if is_used(self._path):
            why = "it was deleted; the server that uses it writes it anew within seconds"
        else:
            why = "a server makes it, or `lorad tenants set`, or `lorad keys add --operator`"
        return Unavailable(f"there is no state file {self._path}: {why}", code="state_missing")

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Errors of SQLite and the system as refusals."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(f"the state file {self._path} can't be used: {error}", code="state_file") from None
