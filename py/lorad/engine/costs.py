"""A fit of the cost model from a file: what `benches/costs/run.py --write` wrote for another machine or base."""

from __future__ import annotations

from typing import Any

from lorad import _core
from lorad.errors import InvalidRequest
from lorad.named_file import expanded, read_json

BYTES_MAX = 1 << 16
VALUE_MAX = 10**12
"""No part takes a quarter of an hour in nanoseconds; a larger figure is in another unit."""


def read_costs(path: str) -> dict[str, int]:
    """The parts of the cost model by name. A refusal names the part, the limit and the value."""
    try:
        found = read_json(expanded(path), BYTES_MAX)
    except OSError as error:
        raise _refused("costs_file", f"{_shown(path)} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise _refused("costs_file", f"{_shown(path)} isn't JSON: {error}") from None
    if not isinstance(found, dict):
        raise _refused("costs_file", f"{_shown(path)}: wants an object of parts and numbers, got {_shown(found)}")
    return check_costs(found)


def paged_in_at(costs: dict[str, int], bytes_per_s: int, page_bytes: int) -> dict[str, int]:
    """The model where page-ins are no faster than this."""
    return costs | {"page_in_page_ns": max(costs["page_in_page_ns"], page_bytes * 10**9 // bytes_per_s)}


def check_costs(found: dict[str, Any]) -> dict[str, int]:
    """`found`, if it has every part of the model and nothing else, whole numbers all."""
    known = _core.default_costs()
    for name, value in found.items():
        if name not in known:
            raise _refused("costs_unknown", f"no part is called {name!r}; there are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise _refused("costs_value", f"{name}: a whole number, got {_shown(value)}")
        if not 0 <= value <= VALUE_MAX:
            limit = "at least 0" if value < 0 else f"at most {VALUE_MAX}"
            raise _refused("costs_value", f"{name}: {limit}, got {value}")
    if missing := [name for name in known if name not in found]:
        # the others' default would be that of another machine
        raise _refused("costs_missing", f"all parts are needed, {', '.join(missing)} isn't there")
    return found


def _refused(code: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"costs: {what}", code=code, param="costs")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"
