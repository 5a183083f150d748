"""Fields of a config.json or of a GGUF header as checked values, refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorad.errors import ModelRejected


class Integers:
    """Required and optional integers of a mapping."""

    def __init__(self, source: Mapping[str, Any], where: str, prefix: str = "") -> None:
        """`where`: how a refusal begins; `prefix` of every name."""
        self._source, self._where, self._prefix = source, where, prefix

    def __call__(self, name: str, default: int | None = None) -> int:
        value = self._source.get(self._prefix + name)
        if value is None:
            if default is None:
                raise ModelRejected(f"{self._where}{self._prefix}{name} is missing", code="model_config")
            return default
        return integer(value, f"{self._where}{self._prefix}{name}")


def integer(value: Any, what: str) -> int:
    """`value` if it is an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelRejected(f"{what} is {value!r}, wants an integer", code="model_config")
    return value


def number(value: Any, what: str) -> float:
    """`value` if it is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelRejected(f"{what} is {value!r}, wants a number", code="model_config")
    return float(value)


def token_ids(value: Any, what: str) -> tuple[int, ...]:
    """A token id, several, or none."""
    if value is None:
        return ()
    return tuple(integer(item, what) for item in (value if isinstance(value, list | tuple) else [value]))
