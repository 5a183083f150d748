"""How much adapters stand in each other's way, from their weights alone: a hint, not a measurement of answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from lorad.adapters.checked import CheckedAdapter, ModuleLora
from lorad.lazy import torch


class Interference(NamedTuple):
    """Of two adapters, means over the modules that both adapt."""

    first: str
    second: str
    modules: int
    """That both adapt."""
    reads: float
    """Overlap of what they read (row spaces of A): 0 apart, 1 the smaller one lies in the other."""
    writes: float
    """Overlap of what they write (column spaces of B)."""
    cosine: float
    """Of the products B A: 1 the same direction, -1 they cancel each other."""


def interference(adapters: Sequence[CheckedAdapter]) -> list[Interference]:
    """Of each two."""
    return [_of(first, second) for first, second in combinations(adapters, 2)]


def _of(first: CheckedAdapter, second: CheckedAdapter) -> Interference:
    others = {(lora.layer, lora.module): lora for lora in second.modules}
    found = [
        _of_module(lora, others[lora.layer, lora.module])
        for lora in first.modules
        if (lora.layer, lora.module) in others
    ]
    means = torch.tensor(found).reshape(-1, 3).mean(dim=0).tolist() if found else [0.0, 0.0, 0.0]
    return Interference(first.name, second.name, len(found), *means)


def _of_module(one: ModuleLora, other: ModuleLora) -> tuple[float, float, float]:
    a1, b1, a2, b2 = one.a.float(), one.b.float(), other.a.float(), other.b.float()
    # tr((B1 A1)ᵀ B2 A2), without either product
    dot = ((b1.T @ b2) * (a1 @ a2.T)).sum() * one.scale * other.scale
    norms = [((b.T @ b) * (a @ a.T)).sum().clamp(min=0).sqrt() * abs(s) for a, b, s in _both(one, other)]
    product = float(norms[0] * norms[1])
    return _overlap(a1.T, a2.T), _overlap(b1, b2), float(dot) / product if product else 0.0


def _both(one: ModuleLora, other: ModuleLora) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    return [(lora.a.float(), lora.b.float(), lora.scale) for lora in (one, other)]


def _overlap(x: torch.Tensor, y: torch.Tensor) -> float:
    """Mean squared cosine of the principal angles between two column spaces (Björck and Golub 1973)."""
    first, second = _basis(x), _basis(y)
    least = min(first.shape[1], second.shape[1])
    return float((first.T @ second).square().sum()) / least if least else 0.0


def _basis(x: torch.Tensor) -> torch.Tensor:
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    basis: torch.Tensor = u[:, s > s.max() * 1e-6] if s.max() > 0 else u[:, :0]
    return basis
