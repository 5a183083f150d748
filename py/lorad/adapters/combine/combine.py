"""`combine`: a new adapter of several, as PEFT's `add_weighted_adapter` makes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.adapters.combine.methods import agreeing, keep_largest, keep_random, linear, sum_of
from lorad.adapters.pieces import Piece
from lorad.errors import InvalidRequest
from lorad.lazy import torch

FACTORS = ("linear", "ties", "dare_linear", "dare_ties", "magnitude_prune")
"""Combine A with A and B with B: quick, and rough, as a product of sums isn't the sum of products."""
PRODUCTS = ("svd", "ties_svd", "dare_linear_svd", "dare_ties_svd", "magnitude_prune_svd")
"""Combine the products B A, and take the nearest of a rank."""
METHODS = ("cat", *FACTORS, *PRODUCTS)
"""`cat` is exact, and its rank is the sum of the ranks."""
PRUNING = tuple(name for name in METHODS if name.removesuffix("_svd") in FACTORS[1:])


class Part(NamedTuple):
    """An adapter and how much of it."""

    adapter: CheckedAdapter
    weight: float


@dataclass(frozen=True)
class Recipe:
    """How to combine."""

    method: str = "cat"
    density: float = 1.0
    """Share of the values that pruning methods keep."""
    rank: int = 0
    """Of the result, for methods by SVD; 0: the highest of the parts."""
    majority: str = "total"
    """How TIES finds a sign: by `total` or by `frequency`."""
    seed: int = 0
    """Of what is kept at random."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidRequest(
                f"method: one of {', '.join(METHODS)}, got {self.method!r}", code="combine_method", param="method"
            )
        if not 0 < self.density <= 1:
            raise InvalidRequest(
                f"density: above 0, at most 1, got {self.density}", code="combine_density", param="density"
            )
        if self.majority not in ("total", "frequency"):
            raise InvalidRequest(
                f"majority: total or frequency, got {self.majority!r}", code="combine_majority", param="majority"
            )
        if self.rank < 0:
            raise InvalidRequest(f"rank: at least 0, got {self.rank}", code="combine_rank", param="rank")


def combine(parts: Sequence[Part], recipe: Recipe) -> Iterator[Piece]:
    """The result's modules, in the order of (layer, module), f32, of scale 1. A module that some parts don't adapt is
    combined of the others."""
    _check(parts, recipe)
    dice = torch.Generator().manual_seed(recipe.seed)
    rank = recipe.rank or max(part.adapter.rank for part in parts)
    by_place: dict[tuple[int, int], list[tuple[ModuleLora, float]]] = {}
    for part in parts:
        for lora in part.adapter.modules:
            by_place.setdefault((lora.layer, lora.module), []).append((lora, part.weight))
    for (layer, module), loras in sorted(by_place.items()):
        a, b = _combined(loras, recipe, rank, dice)
        yield Piece(layer, module, 1.0, {"A": a, "B": b})


def _check(parts: Sequence[Part], recipe: Recipe) -> None:
    if not parts:
        raise InvalidRequest("adapters: at least 1, got 0", code="combine_parts", param="adapters")
    if not any(part.weight for part in parts):
        raise InvalidRequest("weights: all are 0, which leaves nothing", code="combine_weight", param="weight")
    for part in parts:
        if not math.isfinite(part.weight):
            raise InvalidRequest(
                f"weight of {part.adapter.name!r}: a finite number, got {part.weight}",
                code="combine_weight",
                param="weight",
            )
        if any(lora.gain is not None or lora.bias is not None for lora in part.adapter.modules):
            raise InvalidRequest(
                f"{part.adapter.name!r} has DoRA's magnitudes or biases, which can't be combined; plain LoRA can",
                code="combine_vectors",
                param="adapters",
            )
    if recipe.method not in FACTORS:
        return
    ranks: dict[tuple[int, int], tuple[int, str]] = {}
    for part in parts:
        for lora in part.adapter.modules:
            rank, name = ranks.setdefault((lora.layer, lora.module), (lora.rank, part.adapter.name))
            if rank != lora.rank:
                raise InvalidRequest(
                    f"method {recipe.method} wants adapters of one rank; in layer {lora.layer} {name!r} has {rank}, "
                    f"{part.adapter.name!r} {lora.rank}. cat and svd take any",
                    code="combine_rank",
                    param="method",
                )


def _combined(
    loras: list[tuple[ModuleLora, float]], recipe: Recipe, rank: int, dice: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    scales = [weight * lora.scale for lora, weight in loras]
    if recipe.method == "cat":
        a = torch.cat([lora.a.float() * scale for (lora, _), scale in zip(loras, scales, strict=True)])
        return a, torch.cat([lora.b.float() for lora, _ in loras], dim=1)
    mix = _mixer(recipe, dice)
    if recipe.method in FACTORS:
        roots = torch.tensor([math.sqrt(abs(scale)) for scale in scales])
        signs = torch.tensor([1.0 if scale >= 0 else -1.0 for scale in scales])
        a = mix([lora.a.float() for lora, _ in loras], roots * signs)
        return a, mix([lora.b.float() for lora, _ in loras], roots)
    products = [lora.scale * (lora.b.float() @ lora.a.float()) for lora, _ in loras]
    delta = mix(products, torch.tensor([weight for _, weight in loras]))
    u, s, v = torch.linalg.svd(delta, full_matrices=False)
    rank = min(rank, len(s))
    return v[:rank].contiguous(), (u[:, :rank] * s[:rank]).contiguous()


def _mixer(recipe: Recipe, dice: torch.Generator) -> Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]:
    """What makes one tensor of several."""
    method = recipe.method.removesuffix("_svd")
    if method in ("linear", "svd"):
        return linear

    def mix(tensors: list[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
        density = recipe.density
        if density < 1 and method.startswith("dare"):
            tensors = [keep_random(tensor, density, dice) for tensor in tensors]
        elif density < 1:
            tensors = [keep_largest(tensor, density) for tensor in tensors]
        stacked = torch.stack(tensors)
        if method.endswith("ties"):
            return agreeing(stacked, weights, by_count=recipe.majority == "frequency")
        return sum_of(stacked, weights)

    return mix
