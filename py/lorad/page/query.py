"""`Query`: which adapters an overview lists, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lorad.adapters.name import NAME_LENGTH_MAX
from lorad.errors import InvalidRequest

LIMIT_MAX = 200
OFFSET_MAX = 1_000_000
SORTS = ("name", "last_used", "in_flight", "bytes", "rank")
TIERS = ("", "hot", "loading", "cold", "draining", "failed", "remote")


class Query(NamedTuple):
    """One page of the adapters."""

    filter: str = ""
    """A part of the name, whatever its case."""
    tier: str = ""
    """"": all."""
    sort: str = "name"
    """All but the name: largest first."""
    offset: int = 0
    limit: int = 50


def parse_query(given: Mapping[str, str]) -> Query:
    """From a URL's query; a refusal names the field."""
    for field in given:
        if field not in Query._fields:
            known = ", ".join(Query._fields)
            raise InvalidRequest(f"unknown field: {field[:64]!r}; known are {known}", code="query_field", param=field)
    query = Query()
    return Query(
        filter=_text("filter", given.get("filter", query.filter)),
        tier=_one_of("tier", given.get("tier", query.tier), TIERS),
        sort=_one_of("sort", given.get("sort", query.sort), SORTS),
        offset=_number("offset", given.get("offset"), query.offset, 0, OFFSET_MAX),
        limit=_number("limit", given.get("limit"), query.limit, 1, LIMIT_MAX),
    )


def _text(field: str, value: str) -> str:
    if len(value) > NAME_LENGTH_MAX:
        raise _wrong(field, f"at most {NAME_LENGTH_MAX} characters, got {len(value)}")
    return value.casefold()


def _one_of(field: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise _wrong(field, f"one of {', '.join(filter(None, known))}, got {value[:64]!r}")
    return value


def _number(field: str, value: str | None, default: int, low: int, high: int) -> int:
    if value is None:
        return default
    digits = value.isascii() and value.isdigit() and len(value) < 10
    if not digits or not low <= int(value) <= high:
        raise _wrong(field, f"a whole number from {low} to {high}, got {value[:64]!r}")
    return int(value)


def _wrong(field: str, rest: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {rest}", code="query_field", param=field)
