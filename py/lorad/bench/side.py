"""What is measured by turns: a model under some adapters, reached in process or over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from lorad.bench.figures import Figures, spread
from lorad.picture import Spread

Level = Literal["engine", "server"]
SWEEP_RANKS = (8, 16, 64)
SWEEP_DISTINCT = (1, 8, 32)


@dataclass
class Side:
    """One of them, and what its runs came to."""

    name: Literal["base", "one", "merged", "all", "sweep"]
    level: Level = "engine"
    rank: int = 0
    distinct: int = 0
    """Adapters that the requests are spread over; 0: none, the model as it is in its file."""
    repeats: list[Figures] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its model, in words."""
        if self.name == "merged":
            return f"1 of rank {self.rank}, merged"
        return f"{self.distinct} of rank {self.rank}" if self.distinct else "none: the base"

    def spread(self, key: str) -> Spread:
        """A figure over the repeats."""
        return spread([one[key] for one in self.repeats])


def make_sides(levels: Sequence[Level], rank: int, adapters: int, *, merged: bool, sweep: bool) -> list[Side]:
    """Every side of a bench; those of one model stand together."""
    models = [Side("base"), Side("one", rank=rank, distinct=1)]
    models += [Side("merged", rank=rank)] if merged else []
    models += [Side("all", rank=rank, distinct=adapters)]
    if sweep:
        models += [Side("sweep", rank=many, distinct=distinct) for many in SWEEP_RANKS for distinct in SWEEP_DISTINCT]
    return [Side(side.name, level, side.rank, side.distinct) for side in models for level in levels]


def of_level(sides: Sequence[Side], level: Level) -> list[Side]:
    """Those of one level."""
    return [side for side in sides if side.level == level]


def base_of(sides: Sequence[Side], side: Side) -> Side:
    """The base at the side's level."""
    return next(one for one in sides if (one.name, one.level) == ("base", side.level))


def twin_of(sides: Sequence[Side], side: Side) -> Side | None:
    """The same model in process, of a side over HTTP."""
    key = (side.name, side.rank, side.distinct)
    engine = [one for one in of_level(sides, "engine") if (one.name, one.rank, one.distinct) == key]
    return engine[0] if engine and side.level == "server" else None
