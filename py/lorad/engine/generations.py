"""`Generations`: which adapter versions the core knows, and how many names hold each."""

from __future__ import annotations

from dataclasses import dataclass

from lorad.errors import NotFound


@dataclass
class Held:
    """A generation that takes requests."""

    adapter: int
    """Its number in the core."""
    names: int = 0
    """How many registrations hold it; the same content under two names is one copy."""
    pins: int = 0
    """How many of them want it pinned."""


class Generations:
    """From a generation to the core's number and back.

    The core's number of a generation is new each time it's registered: one that drains and one that was registered
    since are two.
    """

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._of: dict[int, str] = {}

    def find(self, generation: str) -> Held | None:
        """The generation, if it takes requests."""
        return self._held.get(generation)

    def get(self, generation: str) -> Held:
        """The generation; a refusal if it takes no requests."""
        held = self._held.get(generation)
        if held is None:
            raise NotFound(f"generation {generation!r} isn't registered", code="unknown_generation")
        return held

    def add(self, generation: str, adapter: int) -> Held:
        """One that the core has just registered."""
        held = self._held[generation] = Held(adapter)
        self._of[adapter] = generation
        return held

    def release(self, generation: str) -> int | None:
        """One name less; the core's number if it was the last one, to be unregistered."""
        held = self.get(generation)
        held.names -= 1
        if held.names:
            return None
        del self._held[generation]
        return held.adapter

    def forget(self, adapter: int) -> None:
        """The core has forgotten it."""
        self._of.pop(adapter, None)

    def of(self, adapter: int) -> str | None:
        """The generation of a number, drained or not."""
        return self._of.get(adapter)
