"""Fields of a config.json or of a GGUF header as checked values, refused by name."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from lorad.errors import ModelRejected


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python writes no more than 4300 digits
            return f"a whole number of {x.bit_length()} bits"


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = 80

NUMBER_MIN, NUMBER_MAX = 1e-20, 1e20
"""Far beyond what real models have."""


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


def shown(value: Any) -> str:
    """`repr`, cut: a damaged file or a careless caller may have megabytes where a name was meant."""
    return _SHORT.repr(value)


def integer(value: Any, what: str) -> int:
    """`value` if it is an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refusal(value, what, "an integer")
    return value


def number(value: Any, what: str) -> float:
    """`value` if it is a number from 1e-20 to 1e20, or 0: all are used in f32, which over- or underflows beyond."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal(value, what, "a number")
    if value != 0 and not NUMBER_MIN <= abs(value) <= NUMBER_MAX:
        raise _refusal(value, what, f"a number from {NUMBER_MIN:g} to {NUMBER_MAX:g}")
    return float(value)


def positive(value: Any, what: str) -> float:
    """`value` if it is such a number and above 0."""
    if (found := number(value, what)) <= 0:
        raise _refusal(value, what, f"a number from {NUMBER_MIN:g} to {NUMBER_MAX:g}")
    return found


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """`value` if it is an object; nothing for null."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _refusal(value, what, "an object")
    return value


def text(value: Any, what: str) -> str:
    """`value` if it is a string."""
    if not isinstance(value, str):
        raise _refusal(value, what, "a text")
    return value


def flag(value: Any, what: str) -> bool:
    """`value` if it is true or false."""
    if not isinstance(value, bool):
        raise _refusal(value, what, "true or false")
    return value


def texts(value: Any, what: str) -> list[str]:
    """`value` if it is a list of strings."""
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise _refusal(value, what, "texts")
    return value


def integers(value: Any, what: str) -> list[int]:
    """`value` if it is a list of integers."""
    if not (isinstance(value, list) and all(type(item) is int for item in value)):
        raise _refusal(value, what, "integers")
    return value


def token_ids(value: Any, what: str) -> tuple[int, ...]:
    """A token id, several, or none."""
    if value is None:
        return ()
    return tuple(integer(item, what) for item in (value if isinstance(value, list | tuple) else [value]))


def _refusal(value: Any, what: str, wanted: str) -> ModelRejected:
    return ModelRejected(f"{what} is {shown(value)}, wants {wanted}", code="model_config")
