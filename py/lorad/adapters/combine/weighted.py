"""What a request asks for when it asks for several adapters at once: Σ weight · adapter, checked and named.

Imports nothing that takes time: the server's front reads it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple

import msgspec

from lorad.errors import InvalidRequest
from lorad.models.fields import shown

PARTS_MAX = 8
"""Adapters in one combination."""
WEIGHT_LEAST, WEIGHT_MOST = 0.001, 10.0
"""What a weight's size may be, with either sign. What is smaller adds next to nothing and still costs its rank."""


class Term(msgspec.Struct, frozen=True):
    """One adapter of a combination. The name is for messages; what it meant then is the generation."""

    name: str
    generation: str
    weight: float


class Wanted(NamedTuple):
    """One adapter of a combination, as it's asked for."""

    name: str
    weight: float


def check_on(most: int) -> None:
    """Refuses a combination where they are off."""
    if not most:
        raise InvalidRequest(
            "adapters: combinations are an experiment and off; --max-combined-adapters turns them on",
            code="combinations_off",
            param="adapters",
        )


def check_model(model: str, *, is_base: bool, base: str) -> None:
    """Refuses a combination on top of an adapter: which one would answer?"""
    if not is_base:
        raise InvalidRequest(
            f"model: with adapters it's the base, {base!r}, got {shown(model)}", code="combination_model", param="model"
        )


def check_wanted(adapters: Sequence[tuple[str, float]]) -> tuple[Wanted, ...]:
    """`adapters` with plain weights. Refuses too few and too many, a name that is there twice, and weights that are no
    numbers or out of range."""
    if not 1 <= len(adapters) <= PARTS_MAX:
        raise InvalidRequest(
            f"adapters: 1 to {PARTS_MAX} entries, got {len(adapters)}", code="combination_parts", param="adapters"
        )
    found: dict[str, Wanted] = {}
    for index, (name, weight) in enumerate(adapters):
        # Turned round, so that what is no number is refused too.
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not is_number or not WEIGHT_LEAST <= abs(weight) <= WEIGHT_MOST:
            raise InvalidRequest(
                f"adapters[{index}].weight: {WEIGHT_LEAST:g} to {WEIGHT_MOST:g}, or the same below 0, got "
                f"{shown(weight)}",
                code="combination_weight",
                param="adapters",
            )
        if name in found:
            raise twice(index, name)
        found[name] = Wanted(name, float(weight))
    return tuple(found.values())


def twice(index: int, name: str) -> InvalidRequest:
    """The refusal of an adapter that is there already; an alias is another name of the same one."""
    return InvalidRequest(
        f"adapters[{index}].name: {shown(name)} is there twice; add up its weights",
        code="combination_twice",
        param="adapters",
    )


def in_order(terms: Sequence[Term]) -> list[Term]:
    """The order that stands for all: a sum doesn't depend on it, its rounding and its generation would."""
    return sorted(terms, key=lambda term: (term.generation, term.weight))


def generation_of(terms: Sequence[Term]) -> str:
    """The generation of a combination, 32 hex digits: of what its parts are and how much of each, in any order. The
    names have no say; that of a base is in those of its adapters."""
    state = hashlib.sha256(b"lorad combination 1\n")
    for term in in_order(terms):
        state.update(term.generation.encode() + b"\n" + struct.pack("<d", term.weight))
    return state.hexdigest()[:32]


def is_plain(terms: Sequence[Term]) -> bool:
    """Whether it's one adapter as it is, of which no copy is wanted."""
    return len(terms) == 1 and terms[0].weight == 1


def spelt(terms: Sequence[Term | Wanted]) -> str:
    """A combination for people."""
    return " + ".join(f"{term.weight:g} × {term.name}" for term in terms)
