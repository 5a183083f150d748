"""What a dump of the core says, as plain data."""

from __future__ import annotations

import msgspec

from lorad import _core


class Group(msgspec.Struct, frozen=True):
    """Who waits in one queue."""

    adapter: int | None
    """None: the base."""

    def __str__(self) -> str:
        return "base" if self.adapter is None else f"adapter {self.adapter}"


class Adapter(msgspec.Struct, frozen=True):
    """An adapter and where its bytes are."""

    id: int
    tag: int
    state: str
    """cold, loading, hot or a reason why it failed."""
    slot: int | None
    since: int | None
    """When its page-in was planned, in µs; while it loads."""
    last_use: int | None
    """When a row last let go of it, in µs; while it's hot."""
    pages: list[int]
    draining: bool
    running: int
    waiting: int


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
    tenant: int = 0


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
    since: int | None
    """When its first request came, in µs."""
    passed_over: int | None
    """Others that were admitted past it since it was first passed over."""


class Listed(msgspec.Struct, frozen=True):
    """A place where groups wait: ready, resume, warm or cold."""

    place: str
    groups: list[Group]


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
    adapters: list[Adapter]
    requests: list[Request]
    queues: list[Queue]
    listed: list[Listed]
    urgent: list[Group]
    """Groups for which the others wait."""
    clears: list[int]
    """Slots that the next plan empties."""
    others: list[Other]

    @classmethod
    def parse(cls, dump: str) -> Snapshot:
        """From the text of a dump, of this process or of a crash report; `Unreadable` names the line that isn't one."""
        return msgspec.convert(_core.snapshot(dump), cls)

    def page_owners(self) -> list[Request | Adapter | None]:
        """Whose each page is; None: free, reserved, or of a kind that has no list of pages in the dump."""
        owners: list[Request | Adapter | None] = [None] * self.pages_total
        everybody: list[Request | Adapter] = [*self.adapters, *self.requests]
        for owner in everybody:
            for page in owner.pages:
                owners[page] = owner
        return owners
