"""The ways to combine tensors that PEFT's `add_weighted_adapter` has, with its numbers.

linear            Σ w t                                                        task arithmetic, arXiv:2212.04089
magnitude_prune   linear, of each t's largest values only
dare_linear       linear, of values kept at random and divided by their share  DARE, arXiv:2311.03099
ties              of the largest values those that agree on their sign, their mean   TIES, arXiv:2306.01708
dare_ties         likewise, of values kept at random
"""

from __future__ import annotations

from collections.abc import Sequence

from lorad.lazy import torch


def linear(tensors: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """Σ w t; `tensors` are of one shape, `weights` [adapters]."""
    return sum_of(torch.stack(list(tensors)), weights)


def sum_of(stacked: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Σ w t over the first dimension."""
    return (stacked * weights.reshape(-1, *[1] * (stacked.dim() - 1))).sum(dim=0)


def keep_largest(tensor: torch.Tensor, density: float) -> torch.Tensor:
    """The share `density` of values that is largest without sign; zero in place of the others."""
    flat = tensor.reshape(-1)
    kept = torch.zeros_like(flat)
    largest = torch.topk(flat.abs(), int(density * flat.numel())).indices
    kept[largest] = flat[largest]
    return kept.reshape(tensor.shape)


def keep_random(tensor: torch.Tensor, density: float, dice: torch.Generator) -> torch.Tensor:
    """Each value with the probability `density`, divided by it, so that the mean stays."""
    kept = torch.bernoulli(torch.full_like(tensor, density), generator=dice)
    return tensor * kept / density


def agreeing(stacked: torch.Tensor, weights: torch.Tensor, *, by_count: bool) -> torch.Tensor:
    """TIES' last two steps: each value's sign by majority, of sums or counts; then the mean of those that have it."""
    votes = (stacked.sign() if by_count else stacked).sum(dim=0)
    agrees = stacked.sign() == torch.where(votes >= 0, 1, -1)
    weighted = stacked * weights.reshape(-1, *[1] * (stacked.dim() - 1))
    return (weighted * agrees).sum(dim=0) / agrees.sum(dim=0).clamp(min=1.0)
