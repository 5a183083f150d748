"""`Record`: one name, what is in force under it, and what is being done to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from lorad.control.operation import Operation
from lorad.engine.messages import AdapterInfo, AdapterStats
from lorad.errors import LoradError


@dataclass(frozen=True)
class Load:
    """What a load was asked to do."""

    source: str
    digest: str
    """What its content must be; "": anything."""
    reload: bool
    pinned: bool
    on_demand: bool


@dataclass(frozen=True)
class Source:
    """Where content is, that was asked for before the start."""

    text: str
    digest: str
    """What the content must be; "": anything."""
    pinned: bool
    new: bool
    """It hasn't been in force yet."""


@dataclass(frozen=True)
class Awaited:
    """What a name had before the start, and hasn't got back yet."""

    sources: tuple[Source, ...]
    """Newest first; each is instead of the one before it, if that can't be had."""


@dataclass
class Record:
    """A name that has an adapter, is getting one, or couldn't get back the one that it had."""

    name: str
    source: str = ""
    """Where what is in force came from."""
    digest: str = ""
    """Of its content, in the adapter cache; "": it isn't there."""
    info: AdapterInfo | None = None
    pinned: bool = False
    kept: bool = False
    """The state file knows of it: a restart brings it back."""
    on_demand: bool = False
    """It was loaded because a request named it, and goes when others need its place."""
    awaited: Awaited | None = None
    """What is to be brought back: source, digest and pin are of its newest, and nothing is in force yet."""
    restoring: Operation | None = None
    """What brings it back at the moment."""
    failure: LoradError | None = None
    """Why it couldn't be brought back after the start."""
    loads: list[tuple[Operation, Load]] = field(default_factory=list)
    """Under way or waiting for their turn."""
    users: int = 0
    """Operations at work on it or waiting for their turn."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Loads and unloads of a name have turns."""

    @property
    def busy(self) -> bool:
        """Whether anything is being done to it, or waits for its turn."""
        return bool(self.users) or self.lock.locked()

    @property
    def loading(self) -> Operation | None:
        """The load that was asked for last, unless an unload came after it."""
        operation = self.loads[-1][0] if self.loads else None
        return None if operation is None or operation.cancelled else operation

    @property
    def wanted_by_request(self) -> bool:
        """Whether that load is for a request that named the adapter."""
        return self.loading is not None and self.loads[-1][1].on_demand

    @property
    def exists(self) -> bool:
        """Whether there is anything to unload; the rest is an unload that hasn't ended."""
        return bool(self.info or self.awaited or self.failure or self.loading)

    @property
    def state(self) -> str:
        """ready, reloading (ready, and something newer is on its way), restoring, loading, failed."""
        if self.info is not None:
            return "ready" if self.loading is None else "reloading"
        if self.awaited is not None:
            return "restoring"
        return "failed" if self.loading is None else "loading"

    def card(self, stats: AdapterStats | None, used: float | None) -> dict[str, Any]:
        """As the adapters' endpoint shows it. `used`: when the last request for it came."""
        card: dict[str, Any] = {
            "name": self.name,
            "object": "lora_adapter",
            "state": self.state,
            "source": self.source,
            "digest": self.digest or None,
            "pinned": self.pinned,
            "kept": self.kept,
            "on_demand": self.on_demand,
            "operation": None if self.loading is None else self.loading.id,
        }
        if (info := self.info) is not None:
            card |= {
                "generation": info.generation,
                "rank": info.rank,
                "modules": info.modules,
                "bytes": info.bytes,
                "pages": info.pages,
                "warnings": list(info.warnings),
                "chat_template": "adapter" if info.chat_template else "base",
                "tier": None if stats is None else stats.state,
                "running": 0 if stats is None else stats.running,
                "waiting": 0 if stats is None else stats.waiting,
                "last_used": used,
            }
        if self.failure is not None:
            card["error"] = {"code": self.failure.code, "message": self.failure.message}
        return card
