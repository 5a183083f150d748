"""`Regular`: does a whole path match an expression? As `re.fullmatch`, but in bounded time.

Expressions come from files that may be hostile, and trainers write some on which backtracking could try millions of
ways (Unsloth's `target_modules`: several `.*?` around long alternatives). So all ways are followed at once: a set of
states per character, as for any regular expression without back references and lookarounds.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

LENGTH_MAX = 1 << 14
SET_MAX = 256
"""Members of a set of characters."""
STATES_MAX = 1 << 14
STEPS_MAX = 4_000_000
"""States visited in all by one `Regular`: a second or two."""

# `re` has no public parser; this module has been its own since 3.11.
_parser: Any = importlib.import_module("re._parser")
_UNICODE = int(re.UNICODE)


class NotRegular(Exception):
    """The expression has something that can't be followed like that, or is too large, or took too many steps."""


class _State(NamedTuple):
    """Either reads a character that `reads` accepts, or stands at a place that `at` accepts, or goes on at once."""

    then: list[int]
    reads: Callable[[str], bool] | None = None
    at: Callable[[str, int], bool] | None = None


class Regular:
    """A compiled expression."""

    def __init__(self, text: str) -> None:
        """ValueError if it isn't an expression; NotRegular if it isn't one that is understood here."""
        if len(text) > LENGTH_MAX:
            raise NotRegular
        try:
            parsed = _parser.parse(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if parsed.state.flags & ~_UNICODE:
            raise NotRegular
        self._states = [_State([])]
        self._steps = 0
        try:
            self._first = self._sequence(parsed, 0)
        except RecursionError:
            raise NotRegular from None

    def fullmatch(self, path: str) -> bool:
        """Does the whole path match? NotRegular if it takes too long."""
        now = self._closure([self._first], path, 0)
        for at, character in enumerate(path):
            after: list[int] = []
            for number in now:
                state = self._states[number]
                if state.reads is not None and state.reads(character):
                    after += state.then
            now = self._closure(after, path, at + 1)
        return 0 in now

    def _closure(self, numbers: list[int], path: str, place: int) -> set[int]:
        seen: set[int] = set()
        while numbers:
            number = numbers.pop()
            if number in seen:
                continue
            seen.add(number)
            state = self._states[number]
            if state.reads is None and (state.at is None or state.at(path, place)):
                numbers += state.then
        self._steps += len(seen)
        if self._steps > STEPS_MAX:
            raise NotRegular
        return seen

    def _add(self, state: _State) -> int:
        if len(self._states) >= STATES_MAX:
            raise NotRegular
        self._states.append(state)
        return len(self._states) - 1

    def _sequence(self, items: Any, then: int) -> int:
        for operation, argument in reversed(list(items)):
            then = self._one(str(operation), argument, then)
        return then

    def _one(self, operation: str, argument: Any, then: int) -> int:
        if operation in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self._add(_State([then], reads=_reader(operation, argument)))
        if operation == "AT" and str(argument) in _PLACES:
            return self._add(_State([then], at=_PLACES[str(argument)]))
        if operation == "SUBPATTERN" and not argument[1] and not argument[2]:
            return self._sequence(argument[3], then)
        if operation == "BRANCH":
            return self._add(_State([self._sequence(way, then) for way in argument[1]]))
        if operation in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeat(int(argument[0]), argument[1], argument[2], then)
        raise NotRegular

    def _repeat(self, low: int, high: Any, body: Any, then: int) -> int:
        if high is _parser.MAXREPEAT:
            loop = self._add(_State([then]))
            self._states[loop].then.append(self._sequence(body, loop))
            then = loop
        else:
            end = then
            for _ in range(int(high) - low):
                then = self._add(_State([self._sequence(body, then), end]))
        for _ in range(low):
            before = then
            then = self._sequence(body, then)
            if then == before:  # an empty body, however often
                break
        return then


def _reader(operation: str, argument: Any) -> Callable[[str], bool]:
    if operation == "ANY":
        return lambda character: character != "\n"
    if operation == "LITERAL":
        return lambda character: ord(character) == argument
    if operation == "NOT_LITERAL":
        return lambda character: ord(character) != argument
    if len(argument) > SET_MAX:
        raise NotRegular
    tests = [_member(str(kind), value) for kind, value in argument if str(kind) != "NEGATE"]
    wanted = len(tests) == len(argument)
    return lambda character: any(test(character) for test in tests) == wanted


def _member(kind: str, value: Any) -> Callable[[str], bool]:
    if kind == "LITERAL":
        return lambda character: ord(character) == value
    if kind == "RANGE":
        low, high = value
        return lambda character: low <= ord(character) <= high
    if kind == "CATEGORY" and str(value) in _CATEGORIES:
        return _CATEGORIES[str(value)]
    raise NotRegular


def _word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _boundary(path: str, place: int) -> bool:
    return (place > 0 and _word(path[place - 1])) != (place < len(path) and _word(path[place]))


_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda character: not character.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda character: not character.isspace(),
    "CATEGORY_WORD": _word,
    "CATEGORY_NOT_WORD": lambda character: not _word(character),
}
_PLACES: dict[str, Callable[[str, int], bool]] = {
    "AT_BEGINNING": lambda path, place: place == 0,
    "AT_BEGINNING_STRING": lambda path, place: place == 0,
    "AT_END": lambda path, place: place == len(path) or path[place:] == "\n",
    "AT_END_STRING": lambda path, place: place == len(path),
    "AT_BOUNDARY": _boundary,
    "AT_NON_BOUNDARY": lambda path, place: not _boundary(path, place),
}
