"""y += scale · (x Aᵀ) Bᵀ for each group of tokens that shares an adapter (Hu et al. 2021, arXiv:2106.09685).

Then y = gain · y + bias, where a module has such vectors: DoRA's magnitudes over norms (Liu et al. 2024,
arXiv:2402.09353), trained biases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Weights(NamedTuple):
    """One adapter's module, as PEFT stores it."""

    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank]
    scale: float
    gain: Tensor | None = None  # f32 [out]
    bias: Tensor | None = None  # f32 [out]


def lora(
    y: Tensor,  # f32 [n, width]
    x: Tensor,  # f32 [n, in]
    modules: Sequence[int],  # the modules that read x
    offsets: Sequence[int],  # where each module's columns of y begin
    groups: Sequence[tuple[int, int, Mapping[int, Weights] | None]],  # (begin, end, module to weights; None: wrong tag)
) -> Tensor:
    """Returns y with the groups' adapters added, f32 [n, width]; rows of a group without weights are NaN."""
    out = y.clone()
    for begin, end, adapter in groups:
        if adapter is None:
            out[begin:end] = torch.nan
            continue
        for module, offset in zip(modules, offsets, strict=True):
            if module in adapter:
                a, b, scale, gain, bias = adapter[module]
                shrunk = x[begin:end] @ a.float().T
                columns = out[begin:end, offset : offset + len(b)]
                columns += scale * shrunk @ b.float().T
                if gain is not None:
                    columns *= gain
                if bias is not None:
                    columns += bias
    return out
