"""Stop strings: the text is cut exactly before the first place where any of them begins, or, if it's kept, behind it:
of several that begin there, behind the shortest.

That is a property of the text alone. Token borders don't matter, nor the order of the stop strings, nor whether one is
part of another. Held back is only what may still turn out to be the beginning of a stop string.

          sent ──────────────┐ held (proper prefix of some stop)
    T h e   c a t   s a t   o│n   t h
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Watches one text for several stop strings."""

    __slots__ = ("_found", "_held", "_keep", "_patterns", "_sent", "stopped")

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        """`keep`: the stop string is the text's end."""
        self._keep = keep
        self._patterns = [_Pattern(stop) for stop in stops]
        self._held = ""
        self._sent = 0
        """Characters of the text before `_held`."""
        self._found: tuple[int, int] | None = None
        """Where the earliest complete match so far begins and ends; an earlier one may still be under way."""
        self.stopped = False
        """A stop string was found and nothing can come before it any more."""

    def push(self, text: str, *, counts: bool = True) -> str:
        """The characters that are decided by now. What ends in a text that doesn't count is no match."""
        if self.stopped:
            return ""
        if not self._patterns:
            return text
        self._held += text
        start = self._sent + len(self._held) - len(text)
        undecided = self._sent + len(self._held)
        for pattern in self._patterns:
            match, begun = pattern.feed(text, start)
            if counts and match is not None and (self._found is None or match < self._found):
                self._found = match
            undecided = min(undecided, begun)
        if self._found is None:
            return self._take(undecided)
        if self._found[0] <= undecided:
            return self._cut(self._found)
        return self._take(undecided)

    def flush(self) -> str:
        """The rest, when no text follows."""
        if self.stopped:
            return ""
        if self._found is not None:
            return self._cut(self._found)
        return self._take(self._sent + len(self._held))

    def _cut(self, found: tuple[int, int]) -> str:
        self.stopped = True
        return self._take(found[self._keep])

    def _take(self, position: int) -> str:
        count = position - self._sent
        out, self._held = self._held[:count], self._held[count:]
        self._sent = position
        return out


class _Pattern:
    """One stop string, matched letter by letter (Knuth, Morris and Pratt): a letter is looked at once."""

    __slots__ = ("_borders", "_stop", "_taken")

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._taken = 0
        """How much of the stop string the text ends with."""
        self._borders = _borders(stop)

    def feed(self, text: str, position: int) -> tuple[tuple[int, int] | None, int]:
        """Where the first match in `text` (at `position`) begins and ends, and where what is under way at its end
        begins."""
        stop, borders, taken = self._stop, self._borders, self._taken
        match: tuple[int, int] | None = None
        if taken == 0 and stop[0] not in text:
            return None, position + len(text)
        for offset, letter in enumerate(text):
            while taken and stop[taken] != letter:
                taken = borders[taken - 1]
            if stop[taken] == letter:
                taken += 1
            if taken == len(stop):
                if match is None:
                    match = position + offset + 1 - taken, position + offset + 1
                taken = borders[taken - 1]
        self._taken = taken
        return match, position + len(text) - taken


def _borders(stop: str) -> list[int]:
    """For each prefix, the longest shorter prefix that it ends with."""
    borders = [0] * len(stop)
    taken = 0
    for index in range(1, len(stop)):
        while taken and stop[index] != stop[taken]:
            taken = borders[taken - 1]
        if stop[index] == stop[taken]:
            taken += 1
        borders[index] = taken
    return borders
