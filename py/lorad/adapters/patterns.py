"""`rank_pattern` and `alpha_pattern`: matched as PEFT matches them, but never for longer than a moment.

PEFT's rule (`peft.utils.other.get_pattern_key`): the first key, in the file's order, for which
`re.match(rf"(.*\\.)?({key})$", path)` matches. The keys come from a file that may be hostile and Python's `re` has no
time limit, so keys whose backtracking could try too many ways are refused.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from lorad.adapters.reject import reject

Value = TypeVar("Value")

KEYS_MAX = 4096
KEY_LENGTH_MAX = 1024
PATH_LENGTH_MAX = 40
"""No module path of a supported base is longer."""
WAYS_MAX = 1 << 16
"""Ways in which all keys of a field together may be tried at one place of one path."""

# `re` has no public parser; this module has been its own since 3.11 and `sre_parse` before.
_parser: Any = importlib.import_module("re._parser")


class Patterns(Generic[Value]):
    """A pattern field: values by regular expression."""

    def __init__(self, field: str, values: Mapping[str, Value]) -> None:
        if len(values) > KEYS_MAX:
            raise reject("adapter_config", f"{field} has {len(values)} keys, at most {KEYS_MAX} are allowed")
        self.field = field
        self._values: list[tuple[str, re.Pattern[str], Value]] = []
        self._unused = dict.fromkeys(values)
        left = WAYS_MAX
        for key, value in values.items():
            pattern, ways = _compile(field, key)
            left -= ways
            if left < 0:
                raise reject("adapter_config", f"{field}: {key!r} could take too long to match; write it more simply")
            self._values.append((key, pattern, value))

    def get(self, path: str, default: Value) -> Value:
        """The value of the first key that matches the end of `path`."""
        for key, pattern, value in self._values:
            if pattern.match(path):
                self._unused.pop(key, None)
                return value
        return default

    def unused(self) -> list[str]:
        """Keys that have decided nothing so far."""
        return list(self._unused)


def _compile(field: str, key: str) -> tuple[re.Pattern[str], int]:
    if len(key) > KEY_LENGTH_MAX:
        raise reject("adapter_config", f"{field}: a key of {len(key)} characters, at most {KEY_LENGTH_MAX} are allowed")
    try:
        ways = _sequence(_parser.parse(key))
        return re.compile(rf"(.*\.)?({key})$"), ways.total()
    except (re.error, OverflowError, RecursionError) as error:
        raise reject("adapter_config", f"{field}: {key!r} isn't a regular expression: {error}") from None


class Ways(NamedTuple):
    """An upper bound of how often a part of an expression is tried."""

    factor: int = 1
    """By alternatives and repeats of a few lengths."""
    wide: int = 0
    """Repeats of any length, one after the other; together they can split a path in only so many ways."""

    def total(self) -> int:
        return self.factor * math.comb(PATH_LENGTH_MAX + min(self.wide, 64), min(self.wide, 64))


_ENDLESS = Ways(factor=WAYS_MAX + 1)


def _sequence(items: Any) -> Ways:
    factor, wide = 1, 0
    for operation, argument in items:
        ways = _ways(str(operation), argument)
        # Cut off, so that numbers stay small whatever the expression.
        factor, wide = min(factor * ways.factor, WAYS_MAX + 1), wide + ways.wide
    return Ways(factor, wide)


def _ways(operation: str, argument: Any) -> Ways:
    if operation in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT"):
        return Ways()
    if operation == "SUBPATTERN":
        return _sequence(argument[3])
    if operation == "BRANCH":
        found = [_sequence(way) for way in argument[1]]
        return Ways(sum(ways.factor for ways in found), max(ways.wide for ways in found))
    if operation in ("MAX_REPEAT", "MIN_REPEAT"):
        low, high = int(argument[0]), int(argument[1])
        body = _sequence(argument[2])
        if high <= 1:
            return Ways(body.factor + 1, body.wide)
        if body == Ways():
            return Ways() if low == high else Ways(wide=1)
    # Repeats within repeats, back references, lookarounds: nobody needs them to name a module.
    return _ENDLESS
