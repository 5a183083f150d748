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
    parts: tuple[str, ...] = ()
    """The adapters' names, if it's a combination under the base's name."""
    template: str = ""
    """Source of the adapter's own chat template; "": the base's is used."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names by which it's known what runs: when one of them is unloaded, this ends."""
        return self.parts or (self.name,)


class Change(NamedTuple):
    """A name means something else than before, by generations; None: nothing."""

    name: str
    before: str | None
    after: str | None

    @property
    def kind(self) -> str:
        """added, replaced, removed."""
        return "added" if self.before is None else "removed" if self.after is None else "replaced"


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
        self._announced: dict[str, str] = {}
        """Names whose adapters are on their way, and the generations that these had."""
        self._aliases: dict[str, str] = {}
        self._used: dict[str, float] = {}
        self._on_changed: list[Callable[[Change], None]] = []

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
            info = entry.info
            return Target(name, info.generation, info.generation, self.tokens_max(info), template=info.chat_template)
        if name in self._base_names:
            return Target(name, "", self._model.digest, self._model.context_length)
        raise unknown_model(name)

    def has(self, name: str) -> bool:
        """Whether it's the base's name, an adapter's, one that is on its way, or an alias."""
        return any(name in names for names in (self._adapters, self._announced, self._aliases, self._base_names))

    def adapter_of(self, spelling: str) -> str | None:
        """What stands behind the base's name and a colon, which isn't the base again; None in any other spelling."""
        for base in self._base_names:
            adapter = spelling.removeprefix(f"{base}:")
            if adapter != spelling and adapter not in self._base_names:
                return adapter
        return None

    def check_name(self, name: str) -> None:
        """Refuses a name that no adapter may have; to be asked before the adapter is loaded."""
        check_name(name)
        if name in self._base_names:
            raise InvalidRequest(f"{name!r} is the base model's name", code="adapter_name")
        if name in self._aliases:
            raise InvalidRequest(f"{name!r} is an alias of {self._aliases[name]!r}", code="adapter_name")

    def announce(self, name: str, generation: str = "") -> None:
        """Lists a name whose adapter is on its way; `generation`: if it's known."""
        self.check_name(name)
        self._announced[name] = generation

    def suspend(self, name: str) -> None:
        """An adapter has to be brought again: its name is listed, and means nothing until then."""
        self._announced[name] = self._adapters.pop(name).info.generation

    def publish(self, info: AdapterInfo) -> AdapterInfo | None:
        """Lets a name mean this adapter from now on; gives the one that it meant before."""
        self.check_name(info.name)
        before = self._adapters.get(info.name)
        self._adapters[info.name] = Entry(info, int(self._now()))
        announced = self._announced.pop(info.name, None)
        self._tell(info.name, before.info.generation if before else announced or None, info.generation)
        return before.info if before else None

    def withdraw(self, name: str) -> AdapterInfo | None:
        """Takes an adapter's name away; gives what it meant, None if that was only on its way."""
        entry = self._adapters.pop(name, None)
        self._used.pop(name, None)
        if self._announced.pop(name, None) is None and entry is None:
            raise NotFound(f"The adapter {name[:NAME_LENGTH_MAX]!r} does not exist", code="adapter_not_found")
        self._tell(name, entry.info.generation if entry else None, None)
        return entry.info if entry else None

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
        if alias in self._adapters or alias in self._announced:
            raise InvalidRequest(f"{alias!r} is an adapter's name", code="adapter_name")
        self._aliases[alias] = target

    def remove_alias(self, alias: str) -> None:
        """Takes an alias away."""
        if self._aliases.pop(alias, None) is None:
            raise NotFound(f"The alias {alias[:NAME_LENGTH_MAX]!r} does not exist", code="alias_not_found")

    def on_changed(self, listener: Callable[[Change], None]) -> None:
        """Calls `listener` when an adapter's name means something else than before."""
        self._on_changed.append(listener)

    def may_use(self, tenant: Tenant, name: str) -> bool:
        """Whether a tenant may ask this name; of an alias, what it stands for too, as answers tell that."""
        is_base = name in self._base_names
        target = self._aliases.get(name, name)
        return tenant.may_use(name, is_base=is_base) and tenant.may_use(target, is_base=is_base)

    def listing(self, tenant: Tenant = EVERYBODY) -> list[dict[str, Any]]:
        """All models that a tenant may use, in OpenAI's form; `root` and `parent` name the base."""
        models = [self._base_card(name) for name in self._base_names]
        models += [self._card(name) for name in (*self._adapters, *self._announced)]
        there = self._adapters.keys() | self._announced.keys()
        models += [self._card(alias) for alias, target in self._aliases.items() if target in there]
        return [model for model in models if self.may_use(tenant, model["id"])]

    def card(self, name: str) -> dict[str, Any]:
        """One model in OpenAI's form."""
        if self._aliases.get(name, name) not in self._announced and self.resolve(name).generation == "":
            return self._base_card(name)
        return self._card(name)

    def _tell(self, name: str, before: str | None, after: str | None) -> None:
        if before != after:
            for listener in self._on_changed:
                listener(Change(name, before, after))

    def tokens_max(self, info: AdapterInfo) -> int:
        """Longest prompt plus output under an adapter: the sequence and the adapter are in the pool together."""
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

    def _card(self, name: str) -> dict[str, Any]:
        """Of an adapter, or of an alias of one. What isn't known before the adapter is here is null."""
        own = self._aliases.get(name, name)
        entry = self._adapters.get(own)
        info = entry.info if entry else None
        return {
            "id": name,
            "object": "model",
            "created": entry.created if entry else self._created,
            "owned_by": "lorad",
            "root": self.base_name,
            "parent": self.base_name if name == own else own,
            "max_model_len": self.tokens_max(info) if info else None,
            "generation": info.generation if info else self._announced[own] or None,
            "rank": info.rank if info else None,
            "bytes": info.bytes if info else None,
        }
