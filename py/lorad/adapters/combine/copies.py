"""`Copies`: the combinations that are kept for further requests, a bounded number of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from lorad.errors import Overloaded


@dataclass
class Copy:
    """One combination."""

    generation: str
    parts: dict[str, str]
    """What each of its names meant when it was made, by generation."""


C = TypeVar("C", bound=Copy)


class Copies(Generic[C]):
    """By generation. When there is no room the one that was used longest ago goes, of those that are idle."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._copies: OrderedDict[str, C] = OrderedDict()

    def __len__(self) -> int:
        return len(self._copies)

    def __iter__(self) -> Iterator[C]:
        return iter(self._copies.values())

    def find(self, generation: str) -> C | None:
        """The copy, if there is one, which counts as a use of it."""
        copy = self._copies.get(generation)
        if copy is not None:
            self._copies.move_to_end(generation)
        return copy

    def make_room(self, is_idle: Callable[[C], bool]) -> C | None:
        """Lets there be room for one more; the copy that went for it. Refused while all are at work."""
        if len(self._copies) < self._most:
            return None
        for copy in self._copies.values():
            if is_idle(copy):
                return self._copies.pop(copy.generation)
        raise Overloaded(
            f"{self._most} combinations of adapters are at work, the limit (--max-combined-adapters)",
            code="combinations_full",
        )

    def add(self, copy: C) -> None:
        """One more; `make_room` goes before."""
        self._copies[copy.generation] = copy

    def has(self, copy: C) -> bool:
        """Whether this very one is still kept."""
        return self._copies.get(copy.generation) is copy

    def take_all(self) -> list[C]:
        """Forgets, and gives, all."""
        copies, self._copies = list(self._copies.values()), OrderedDict()
        return copies

    def remove(self, copy: C) -> None:
        """Forgets one, if it's still kept."""
        if self.has(copy):
            del self._copies[copy.generation]

    def take_stale(self, name: str, generation: str | None) -> Iterator[C]:
        """Forgets, and gives, those in which a name means something else than this (None: nothing any more)."""
        for copy in list(self._copies.values()):
            if copy.parts.get(name, generation) != generation:
                yield self._copies.pop(copy.generation)
