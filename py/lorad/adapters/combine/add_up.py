"""`add_up`: the adapter that computes Σ weight · scale · B A of several, exactly.

Ranks are concatenated, as by PEFT's `cat`; weight and scale are in A only, or in the module's scale where all share it.
Rounded once to f32, which the result is of, unless the parts' own type holds all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.adapters.combine.weighted import Term, generation_of, in_order, spelt
from lorad.adapters.image import AdapterImage
from lorad.adapters.size import Size
from lorad.adapters.unpack import outlines, unpack
from lorad.errors import InvalidRequest
from lorad.lazy import torch
from lorad.models.config import ModelConfig
from lorad.models.elements import element_of

Place = tuple[int, int]
"""Layer and module."""


class Part(NamedTuple):
    """One adapter, how much of it, and its pages."""

    term: Term
    image: AdapterImage


def add_up(parts: Sequence[Part], config: ModelConfig, *, max_lora_rank: int) -> CheckedAdapter:
    """The sum of adapters of one base. Refuses what doesn't add up (DoRA's magnitudes), ranks above the limit and
    values too large for f32. Takes as long as a load; safe on any thread."""
    _check(parts, config, max_lora_rank)
    terms = in_order([part.term for part in parts])
    images = {part.term: part.image for part in parts}
    found: dict[Place, list[tuple[ModuleLora, float]]] = {}
    for term in terms:
        for lora in unpack(images[term], config):
            found.setdefault((lora.layer, lora.module), []).append((lora, term.weight))
    modules = [_sum(loras) for _, loras in sorted(found.items())]
    for size in map(Size.of, modules):
        if not size.fits:
            raise InvalidRequest(
                f"adapters: {spelt(terms)} has values that are too large to be computed with in f32: {size}",
                code="combination_range",
                param="adapters",
            )
    own = {lora.a.dtype for loras in found.values() for lora, _ in loras}
    dtype = own.pop() if len(own) == 1 else torch.float32
    if not all(torch.equal(lora.a.to(dtype).float(), lora.a) for lora in modules):
        dtype = torch.float32
    modules = [lora._replace(a=lora.a.to(dtype), b=lora.b.to(dtype)) for lora in modules]
    return CheckedAdapter(spelt(terms), generation_of(terms), element_of(dtype), tuple(modules))


def _check(parts: Sequence[Part], config: ModelConfig, max_lora_rank: int) -> None:
    ranks: dict[Place, int] = {}
    for part in parts:
        for outline in outlines(part.image):
            if outline.has_gain:
                raise InvalidRequest(
                    f"adapters: {part.term.name!r} has DoRA's magnitudes, which are of its own sum and don't add up",
                    code="combination_dora",
                    param="adapters",
                )
            place = outline.layer, outline.module
            ranks[place] = ranks.get(place, 0) + outline.rank
    (layer, module), most = max(ranks.items(), key=lambda item: item[1])
    if most > max_lora_rank:
        raise InvalidRequest(
            f"adapters: their ranks add up to {most} in layer {layer}, {config.adaptable()[module].name}; at most "
            f"{max_lora_rank} is allowed (--max-lora-rank)",
            code="combination_rank_limit",
            param="adapters",
        )


def _sum(loras: Sequence[tuple[ModuleLora, float]]) -> ModuleLora:
    """Of one module, in f32: y += scale · B A x + bias."""
    factors = [lora.scale * weight for lora, weight in loras]
    # Where all have the same factor, as a single one has, A stays as it is.
    scale, folded = (factors[0], [1.0] * len(factors)) if len(set(factors)) == 1 else (1.0, factors)
    a = torch.cat([lora.a.float() * factor for (lora, _), factor in zip(loras, folded, strict=True)])
    b = torch.cat([lora.b.float() for lora, _ in loras], dim=1)
    biases = [lora.bias * weight for lora, weight in loras if lora.bias is not None]
    first = loras[0][0]
    return ModuleLora(
        first.layer, first.module, len(a), scale, a, b, bias=torch.stack(biases).sum(dim=0) if biases else None
    )
