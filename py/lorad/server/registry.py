"""Names to what serves them. One registry for all endpoints, right as soon as a call has answered.

Names are opaque and matched exactly. A name is the base, one adapter or an alias of one, never two of them; an unknown
name is nobody's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lorad.adapters.name import NAME_LENGTH_MAX, check_name
from lorad.engine.messages import AdapterInfo, ModelInfo
from lorad.errors import InvalidRequest, NotFound
from lorad.tenants.tenant import EVERYBODY, Tenant


class Target(NamedTuple):
    """What answers a request: a name and the weights behind it at this moment."""

    name: str
    generation: str
    """"" for the base."""
    fingerprint: str
    """Told in each answer as `system_fingerprint`: the adapter's generation, or the base's digest."""
    tokens_max: int
    """Longest prompt plus output, in tokens."""


class Entry(NamedTuple):
    """An adapter and when it got its name."""

    info: AdapterInfo
    created: int


def unknown_model(name: str) -> NotFound:
    """The refusal of a name that nobody has, and of one that the caller may not use: it can't tell which."""
    return NotFound(f"The model {name[:NAME_LENGTH_MAX]!r} does not exist", code="model_not_found", param="model")


class Registry:
    """The base's names and the adapters'."""

    def __init__(self, base_names: Sequence[str], model: ModelInfo, *, now: Callable[[], float] = time.time) -> None:
        self._base_names = tuple(base_names)
        self._model = model
        self._now = now
        self._created = int(now())
        self._adapters: dict[str, Entry] = {}
        self._aliases: dict[str, str] = {}
        self._used: dict[str, float] = {}
        self._on_changed: list[Callable[[str, str], None]] = []

    @property
    def base_name(self) -> str:
        """The base's public name."""
        return self._base_names[0]

    @property
    def adapters(self) -> dict[str, AdapterInfo]:
        """The adapters that can be asked, by name."""
        return {name: entry.info for name, entry in self._adapters.items()}

    def is_adapter(self, name: str) -> bool:
        """Whether it's an adapter's own name."""
        return name in self._adapters

    def resolve(self, name: str) -> Target:
        """What `name` means now; of an alias, what it stands for, by its own name."""
        name = self._aliases.get(name, name)
        entry = self._adapters.get(name)
        if entry is not None:
            return Target(name, entry.info.generation, entry.info.generation, self._tokens_max(entry.info))
        if name in self._base_names:
            return Target(name, "", self._model.digest, self._model.context_length)
        raise unknown_model(name)

    def check_name(self, name: str) -> None:
        """Refuses a name that no adapter may have; to be asked before the adapter is loaded."""
        check_name(name)
        if name in self._base_names:
            raise InvalidRequest(f"{name!r} is the base model's name", code="adapter_name")
        if name in self._aliases:
            raise InvalidRequest(f"{name!r} is an alias of {self._aliases[name]!r}", code="adapter_name")

    def publish(self, info: AdapterInfo) -> AdapterInfo | None:
        """Lets a name mean this adapter from now on; gives the one that it meant before."""
        self.check_name(info.name)
        before = self._adapters.get(info.name)
        self._adapters[info.name] = Entry(info, int(self._now()))
        if before is None or before.info.generation != info.generation:
            self._tell(info.name, "added" if before is None else "replaced")
        return before.info if before else None

    def withdraw(self, name: str) -> AdapterInfo:
        """Takes an adapter's name away."""
        entry = self._adapters.pop(name, None)
        self._used.pop(name, None)
        if entry is None:
            raise NotFound(f"The adapter {name[:NAME_LENGTH_MAX]!r} does not exist", code="adapter_not_found")
        self._tell(name, "removed")
        return entry.info

    def use(self, name: str) -> None:
        """A request for an adapter has been admitted."""
        if name in self._adapters:
            self._used[name] = self._now()

    def now(self) -> float:
        """The clock of `last_used`."""
        return self._now()

    def last_used(self, name: str) -> float | None:
        """When that was last, in seconds since 1970."""
        return self._used.get(name)

    @property
    def aliases(self) -> dict[str, str]:
        """What each alias stands for. That may have no adapter at the moment: then the alias is unknown too."""
        return dict(self._aliases)

    def set_alias(self, alias: str, target: str) -> None:
        """Lets `alias` stand for the adapter named `target` from now on, in place of what it stood for."""
        if self._aliases.get(alias) is None:
            self.check_name(alias)
        if alias in self._adapters:
            raise InvalidRequest(f"{alias!r} is an adapter's name", code="adapter_name")
        self._aliases[alias] = target

    def remove_alias(self, alias: str) -> None:
        """Takes an alias away."""
        if self._aliases.pop(alias, None) is None:
            raise NotFound(f"The alias {alias[:NAME_LENGTH_MAX]!r} does not exist", code="alias_not_found")

    def on_changed(self, listener: Callable[[str, str], None]) -> None:
        """Calls `listener(name, change)` when an adapter's name means something else: added, replaced, removed."""
        self._on_changed.append(listener)

    def may_use(self, tenant: Tenant, name: str) -> bool:
        """Whether a tenant may ask this name; of an alias, what it stands for too, as answers tell that."""
        is_base = name in self._base_names
        target = self._aliases.get(name, name)
        return tenant.may_use(name, is_base=is_base) and tenant.may_use(target, is_base=is_base)

    def listing(self, tenant: Tenant = EVERYBODY) -> list[dict[str, Any]]:
        """All models that a tenant may use, in OpenAI's form; `root` and `parent` name the base."""
        models = [self._base_card(name) for name in self._base_names]
        models += [self._adapter_card(name, entry) for name, entry in self._adapters.items()]
        aliases = ((alias, self._adapters.get(target)) for alias, target in self._aliases.items())
        models += [self._adapter_card(alias, entry) for alias, entry in aliases if entry is not None]
        return [model for model in models if self.may_use(tenant, model["id"])]

    def card(self, name: str) -> dict[str, Any]:
        """One model in OpenAI's form."""
        entry = self._adapters.get(self.resolve(name).name)
        return self._base_card(name) if entry is None else self._adapter_card(name, entry)

    def _tell(self, name: str, change: str) -> None:
        for listener in self._on_changed:
            listener(name, change)

    def _tokens_max(self, info: AdapterInfo) -> int:
        """A sequence and its adapter are in the pool together."""
        beside = max(0, self._model.pages - info.pages) * self._model.page_tokens
        return min(self._model.context_length, beside)

    def _base_card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "lorad",
            "root": self.base_name,
            "parent": None,
            "max_model_len": self._model.context_length,
            "generation": self._model.digest,
        }

    def _adapter_card(self, name: str, entry: Entry) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": entry.created,
            "owned_by": "lorad",
            "root": self.base_name,
            "parent": self.base_name if name == entry.info.name else entry.info.name,
            "max_model_len": self._tokens_max(entry.info),
            "generation": entry.info.generation,
            "rank": entry.info.rank,
            "bytes": entry.info.bytes,
        }
