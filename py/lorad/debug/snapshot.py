"""What a dump of the core says, as plain data."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from lorad import _core


class Group(msgspec.Struct, frozen=True):
    """Who waits in one queue."""

    adapter: int | None
    """None: the base."""
    tenant: int = 0
    priority: str = "normal"
    """low, normal or high."""

    def __str__(self) -> str:
        tenant = f"tenant {self.tenant} " if self.tenant else ""
        priority = "" if self.priority == "normal" else f" {self.priority}"
        return tenant + ("base" if self.adapter is None else f"adapter {self.adapter}") + priority


class Tenant(msgspec.Struct, frozen=True):
    """A tenant, its share and what it has."""

    id: int
    weight: int
    service: int
    """What it was charged, in ns over its weight."""
    running: int
    waiting: int
    pages: int
    """Of its running requests and of its adapters that run or load."""
    clock: int
    """The clock of its waits, in µs."""
    standing: str
    """runs, at its limit, or nothing: the clock stands."""


class Adapter(msgspec.Struct, frozen=True):
    """An adapter and where its bytes are."""

    id: int
    tag: int
    state: str
    """remote, cold, loading, hot or a reason why it failed."""
    slot: int | None
    pages: list[int]
    draining: bool
    pinned: bool
    running: int
    waiting: int
    asked: bool = False
    """The host was asked for its bytes; while it's remote."""
    since: int | None = None
    """When its page-in was planned, in µs; while it loads."""
    layers: tuple[int, int] | None = None
    """How many are there, and of how many; while it loads."""
    dropped: bool = False
    """Nobody waits for it any more; while it loads."""
    last_use: int | None = None
    """When a row last let go of it, in µs; while it's hot."""


class Request(msgspec.Struct, frozen=True):
    """A request that has pages."""

    id: int
    group: Group
    state: str
    """running, or ending: it ended while the plan in flight uses its pages."""
    line: int
    pages: list[int]
    computed: int = 0
    """Tokens whose KV is in the pages."""
    length: int = 0
    """Tokens known: prompt and answer so far."""
    planned: int = 0
    """New tokens in the plan in flight."""
    answered: int = 0
    max_tokens: int = 0
    cached: int = 0
    """How many of its pages, from the left, are the prefix cache's."""


class Waiting(msgspec.Struct, frozen=True):
    """A request in a queue."""

    id: int
    answered: int | None
    """Tokens of its answer so far, if it was preempted."""
    max_tokens: int | None


class Queue(msgspec.Struct, frozen=True):
    """A group's queue."""

    group: Group
    waiting: list[Waiting]
    waited: int | None
    """How long its first request has waited on its tenant's clock, in µs. None: its bytes aren't on the host."""
    bound: int | None
    """How long it can wait at most."""


class Listed(msgspec.Struct, frozen=True):
    """A place where groups wait: resume, ready or cold."""

    place: str
    groups: list[Group]


class Cached(msgspec.Struct, frozen=True):
    """A page of the prefix cache."""

    page: int
    generation: int
    """The adapter, 0 for the base."""
    tenant: int
    doomed: bool
    """Nobody new finds it; it goes when nobody holds it."""
    above: int | None
    """The page before it."""
    col: int
    tokens: int
    holders: int
    heat: float
    """Uses of late."""
    used: int
    """When it was last used, in µs."""


class Prefix(msgspec.Struct, frozen=True):
    """The prefix cache."""

    pages: int
    pages_max: int
    evictable: int
    order: str
    """least worth or least recent goes first."""
    next: int | None
    """The page that goes next."""
    cached: list[Cached]


class Other(msgspec.Struct, frozen=True):
    """A line of another kind."""

    line: int
    text: str


class Snapshot(msgspec.Struct, frozen=True):
    """The whole state of a core."""

    now: int
    """µs."""
    plans: int
    """Plans made."""
    in_flight: int | None
    """Number of the plan in flight."""
    pages_total: int
    pages: dict[str, int]
    """Pages by kind of owner."""
    running: int
    rows_max: int
    waiting: int
    waiting_max: int
    tenants: list[Tenant]
    adapters: list[Adapter]
    requests: list[Request]
    queues: list[Queue]
    listed: list[Listed]
    urgent: list[Group]
    """Groups that the others make way for."""
    wanted: list[int]
    """Adapters to be paged in although nobody waits."""
    prefix: Prefix | None
    """None: nothing is cached."""
    clears: list[int]
    """Slots that the next plan empties."""
    others: list[Other]

    @classmethod
    def parse(cls, dump: str) -> Snapshot:
        """From the text of a dump, of this process or of a crash report; `Unreadable` names the line that isn't one."""
        return msgspec.convert(_core.snapshot(dump), cls)

    def page_owners(self) -> list[Owner]:
        """Whose each page is; None: free or reserved. Pages that requests share are the prefix cache's."""
        owners: list[Owner] = [None] * self.pages_total
        everybody: list[Request | Adapter] = [*self.adapters, *self.requests]
        for owner in everybody:
            for page in owner.pages:
                owners[page] = owner
        for cached in self.prefix.cached if self.prefix else []:
            owners[cached.page] = cached
        return owners


Owner: TypeAlias = Request | Adapter | Cached | None
"""Whose a page can be."""
