"""Calls read out of an answer as it comes: what stands before, between and after them is its text.

The answer follows the grammar of `lorad.grammars.calls`, so a call has one spelling; an answer may stop anywhere.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from lorad.text.tools import BEGIN, END

_HEAD = re.compile(r'\s*\{"name": "([^"]*)", "arguments": ')


class CallDelta(NamedTuple):
    """News of one call. The first has its name and no arguments, the others what the arguments go on with."""

    number: int
    id: str
    name: str | None
    arguments: str


class CallReader:
    """Reads one answer."""

    def __init__(self) -> None:
        self.calls: list[CallDelta] = []
        """All calls so far, with all of their arguments so far."""
        self._held = ""
        """What isn't decided yet: text that may be the beginning of a call, or a call's head."""
        self._state = self._text
        self._after = False
        """A call is complete and no text has followed: blanks between calls are no text."""
        self._depth = 0
        self._string = self._escaped = False

    @property
    def inside(self) -> bool:
        """A call was begun and isn't complete."""
        return self._state != self._text

    def push(self, text: str) -> list[str | CallDelta]:
        """What is decided by now: text, and news of calls, in order."""
        self._held += text
        news: list[str | CallDelta] = []
        while self._state(news):
            pass
        return news

    def flush(self) -> str:
        """The rest, when no text follows: a call whose name isn't complete is text."""
        rest, self._held = self._held, ""
        if self._state == self._head:
            return BEGIN + rest
        return rest if self._state == self._text and not self._blank(rest) else ""

    # Each takes what it can from the held text; whether the next one may go on.

    def _text(self, news: list[str | CallDelta]) -> bool:
        text, mark, rest = self._held.partition(BEGIN)
        if mark:
            if text and not self._blank(text):
                news.append(text)
            self._held, self._state = rest, self._head
            return True
        most = min(len(text), len(BEGIN) - 1)
        held = next((size for size in range(most, 0, -1) if BEGIN.startswith(text[-size:])), 0)
        decided = text[: len(text) - held]
        if decided and not self._blank(decided):
            news.append(decided)
            self._held, self._after = text[len(decided) :], False
        return False

    def _blank(self, text: str) -> bool:
        return self._after and text.isspace()

    def _head(self, news: list[str | CallDelta]) -> bool:
        head = _HEAD.match(self._held)
        if head is None:
            return False
        begun = CallDelta(len(self.calls), "call_" + secrets.token_hex(12), head[1], "")
        self.calls.append(begun)
        news.append(begun)
        self._held, self._state, self._depth = self._held[head.end() :], self._arguments, 0
        return True

    def _arguments(self, news: list[str | CallDelta]) -> bool:
        end = self._end()
        if end:
            call = self.calls[-1]
            self.calls[-1] = call._replace(arguments=call.arguments + self._held[:end])
            news.append(CallDelta(call.number, call.id, None, self._held[:end]))
            self._held = self._held[end:]
        if self._depth or not end:
            return False
        self._state = self._tail
        return True

    def _end(self) -> int:
        """How much of the held text belongs to the arguments."""
        for place, letter in enumerate(self._held):
            if self._string:
                self._string = self._escaped or letter != '"'
                self._escaped = letter == "\\" and not self._escaped
            elif letter == '"':
                self._string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "]}":
                self._depth -= 1
                if not self._depth:
                    return place + 1
        return len(self._held)

    def _tail(self, news: list[str | CallDelta]) -> bool:
        _, mark, rest = self._held.partition(END)
        if mark:
            self._held, self._state, self._after = rest, self._text, True
        return bool(mark)
