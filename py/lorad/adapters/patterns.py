"""`rank_pattern` and `alpha_pattern`: matched as PEFT matches them, but never for longer than a moment.

PEFT's rule (`peft.utils.other.get_pattern_key`): the first key, in the file's order, for which
`re.match(rf"(.*\\.)?({key})$", path)` matches. The keys come from a file that may be hostile and Python's `re` has no
time limit, so a key whose backtracking could take too many steps is refused.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from lorad.adapters.reject import reject

Value = TypeVar("Value")

KEYS_MAX = 4096
KEY_LENGTH_MAX = 1024
PATH_LENGTH_MAX = 64
"""No module path of a supported base is longer."""
STEPS_MAX = 1 << 20
"""Ways in which one key may be tried on one path."""

# `re` has no public parser; this module has been its own since 3.11 and `sre_parse` before.
_parser: Any = importlib.import_module("re._parser")


class Patterns(Generic[Value]):
    """A pattern field: values by regular expression."""

    def __init__(self, field: str, values: Mapping[str, Value]) -> None:
        if len(values) > KEYS_MAX:
            raise reject("adapter_config", f"{field} has {len(values)} keys, at most {KEYS_MAX} are allowed")
        self._values = [(_compile(field, key), value) for key, value in values.items()]

    def get(self, path: str, default: Value) -> Value:
        """The value of the first key that matches the end of `path`."""
        for pattern, value in self._values:
            if pattern.match(path):
                return value
        return default


def _compile(field: str, key: str) -> re.Pattern[str]:
    if len(key) > KEY_LENGTH_MAX:
        raise reject("adapter_config", f"{field}: a key of {len(key)} characters, at most {KEY_LENGTH_MAX} are allowed")
    whole = rf"(.*\.)?({key})$"
    try:
        steps = _steps(_parser.parse(whole))
        if steps <= STEPS_MAX:
            return re.compile(whole)
    except (re.error, OverflowError, RecursionError) as error:
        raise reject("adapter_config", f"{field}: {key!r} isn't a regular expression: {error}") from None
    raise reject("adapter_config", f"{field}: {key!r} could take too long to match; write it more simply")


def _steps(items: Any) -> int:
    """An upper bound of the ways to try a parsed expression, cut off above `STEPS_MAX`."""
    product = 1
    for operation, argument in items:
        product = min(product * _choices(str(operation), argument), STEPS_MAX + 1)
    return product


def _choices(operation: str, argument: Any) -> int:
    if operation in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT"):
        return 1
    if operation == "SUBPATTERN":
        return _steps(argument[3])
    if operation == "BRANCH":
        return sum(_steps(way) for way in argument[1])
    if operation in ("MAX_REPEAT", "MIN_REPEAT"):
        low, high, body = argument
        low, high = min(int(low), PATH_LENGTH_MAX), min(int(high), PATH_LENGTH_MAX)
        inner = _steps(body)
        return (high - low + 1) * (inner**high if inner > 1 else 1)
    # Back references, lookarounds and the like: nobody needs them to name a module.
    return STEPS_MAX + 1
