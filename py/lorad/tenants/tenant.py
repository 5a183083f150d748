"""`Tenant`: whose requests they are, which models they may name, and how much they may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lorad.adapters.name import check_name
from lorad.errors import InvalidRequest
from lorad.models.fields import shown

NAME_LENGTH_MAX = 64
LABEL_LENGTH_MAX = 256
WEIGHT_MAX = 1000
LIMIT_MAX = (1 << 32) - 1
"""Of any limit: what the core counts with."""


class Limits(NamedTuple):
    """How much a tenant may ask for; 0: as much as there is."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    """Prompt and made tokens, those from the prefix cache included."""
    running_max: int = 0
    """Sequences that run at the same time; more of them wait."""
    waiting_max: int = 0
    """Sequences that wait; one more is refused."""
    pages_max: int = 0
    """Pages of the pool that its running sequences hold."""
    adapters_max: int = 0
    """Adapters that its requests in flight name; a request for one more is refused."""


class Tenant(NamedTuple):
    """One tenant, as its row says."""

    name: str
    number: int
    """By which the core knows it; never given again. 0: no tenants are kept, everybody is this one."""
    adapters: tuple[str, ...] = ("*",)
    """Names that it may use; one that ends with `*` stands for all that begin so."""
    base: bool = True
    """Whether it may ask the base model."""
    weight: int = 100
    """Its share of the engine beside others', 1 to 1000."""
    limits: Limits = Limits()

    def may_use(self, name: str, *, is_base: bool) -> bool:
        """Whether a request may name this model."""
        if is_base:
            return self.base
        return any(
            name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in self.adapters
        )


EVERYBODY = Tenant("", 0)
"""Whose requests are where no tenants are kept."""


def check_tenant(name: str, adapters: Sequence[str], weight: int, limits: Limits) -> None:
    """Refuses what no tenant may have, by field."""
    fine = name.isascii() and name.isprintable() and " " not in name and 1 <= len(name) <= NAME_LENGTH_MAX
    if not fine or name.startswith("-"):
        raise _wrong("name", f"1 to {NAME_LENGTH_MAX} printable ASCII characters without spaces, got {name!r}")
    for pattern in adapters:
        if pattern != "*":
            check_name(pattern)
    if not 1 <= weight <= WEIGHT_MAX:
        raise _wrong("weight", f"1 to {WEIGHT_MAX}, got {weight}")
    for field, value in limits._asdict().items():
        if not 0 <= value <= LIMIT_MAX:
            raise _wrong(field, f"0 to {LIMIT_MAX}, got {value}")


def check_label(label: str) -> None:
    """Refuses what no key may have for a label."""
    if not label.isprintable() or len(label) > LABEL_LENGTH_MAX:
        raise _wrong("label", f"up to {LABEL_LENGTH_MAX} printable characters, got {shown(label)}")


def _wrong(field: str, rest: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {rest}", code="tenant_field", param=field)
