"""What a replica tells a router of itself: a stream of server-sent events, each of them one `Inventory` in JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

PATH = "/v1/inventory"
ROUTE_HEADER = "X-Lorad-Route"
"""On requests that a router sends: the router's id, a colon, and the request's number. On answers: the explanation."""
EVERY_SECONDS = 0.1
"""How often a replica looks whether anything has changed."""
LEAST_SECONDS = 0.5
"""How long it's silent at most: a router takes one that is silent for longer as gone."""

Tier = Literal["hot", "loading", "warm", "cold", "absent"]
"""In pages; on its way there; in the engine's memory; on the replica's disk; nowhere there."""


class AdapterNow(msgspec.Struct, frozen=True, omit_defaults=True):
    """An adapter by its name."""

    name: str
    tier: Tier
    generation: str = ""
    bytes: int = 0
    """Of its pages, whether it's in them or not."""
    pinned: bool = False
    source: str = ""
    """Where a replica that hasn't got it can fetch it from; "": an option of the replica's start named it."""


class LoadTimes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds for a byte until it's in pages, from each tier, as measured; None: there was nothing to measure yet."""

    warm: float | None = None
    cold: float | None = None
    absent: float | None = None


class Inventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replica at one moment, or what has changed since an earlier one."""

    number: int
    """Larger than the one before."""
    base: int | None = None
    """None: this is all. Else `adapters` and `aliases` are what has changed since that inventory, `absent` for what is
    gone."""
    seen: int = 0
    """The last request of this router that has come; 0: none."""
    model: str = ""
    """The base's name."""
    digest: str = ""
    """The base's."""
    queue_seconds: float = 0.0
    """How long a request that came now would wait before its prompt is begun: tokens before it × `token_seconds`."""
    token_seconds: float | None = None
    """What a token before a request's first one takes, as measured; None: nothing was measured yet."""
    token_bytes: float | None = None
    """Bytes of a request's body for each token of its prompt, as measured."""
    draining: bool = False
    """It takes no new requests."""
    running: int = 0
    waiting: int = 0
    page_bytes: int = 0
    pages: int = 0
    pages_free: int = 0
    adapter_bytes: int = 0
    """Of adapters in pages."""
    adapter_bytes_max: int = 0
    """Of the pool, without the most that sequences had of it in the last minute."""
    page_ins: int = 0
    """Since the engine's start."""
    loads: LoadTimes = LoadTimes()
    adapters: list[AdapterNow] = []
    aliases: dict[str, str] | None = None
    """All of them; None: they are as they were."""
