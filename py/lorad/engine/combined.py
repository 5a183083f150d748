"""Combinations of adapters that `Engine.add` asks for: made at the first request, kept for the next ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lorad.adapters.combine.copies import Copies, Copy
from lorad.adapters.combine.weighted import (
    Term,
    check_model,
    check_on,
    check_wanted,
    generation_of,
    is_plain,
)
from lorad.errors import InvalidRequest
from lorad.models.fields import shown

if TYPE_CHECKING:
    from lorad.engine.engine import Engine


class Combined:
    """Those of one engine, by names that mean something there."""

    def __init__(self, engine: Engine, most: int) -> None:
        """`most`: of `max_combined_adapters`; 0: off."""
        self._engine = engine
        self._most = most
        self._copies: Copies[Copy] = Copies(most)

    def __len__(self) -> int:
        return len(self._copies)

    def generation(self, adapters: Mapping[str, float], model: str) -> str:
        """What is served for these weights by name. Makes it if it isn't there, which takes as long as a load."""
        check_on(self._most)
        if not isinstance(adapters, Mapping):
            raise InvalidRequest(
                f"adapters: weights by name, got {shown(adapters)}", code="field_type", param="adapters"
            )
        check_model(model, is_base=model == "", base="")
        wanted = check_wanted(list(adapters.items()))
        terms = [
            Term(name, self._engine.adapters.named(name, param="adapters").generation, weight)
            for name, weight in wanted
        ]
        if is_plain(terms):
            return terms[0].generation
        generation = generation_of(terms)
        if self._copies.find(generation) is None:
            prepared = self._engine.prepare_combination(self._engine.combination_parts(terms))
            if (gone := self._copies.make_room(self._is_idle)) is not None:
                self._engine.release_adapter(gone.generation)
            self._engine.register_adapter(prepared)
            self._copies.add(Copy(generation, {term.name: term.generation for term in terms}))
        return generation

    def changed(self, name: str, generation: str | None) -> None:
        """A name means something else now, or nothing (None): who runs on what it meant ends on that."""
        for copy in self._copies.take_stale(name, generation):
            self._engine.release_adapter(copy.generation)

    def _is_idle(self, copy: Copy) -> bool:
        stats = self._engine.stats().adapters[copy.generation]
        return stats.running == stats.waiting == 0
