"""What an adapter's vectors are made of, together with the base's weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lorad.adapters.reject import reject
from lorad.lazy import torch

BaseValues = Callable[[str], NDArray[np.float32]]
"""A base weight by its canonical name, f32 of its shape; of a quantised one what it stands for."""

_ROWS = 512
"""Of a weight that are widened at once."""


def dora_gain(
    key: str,
    weight: NDArray[np.float32],
    a: torch.Tensor,
    b: torch.Tensor,
    scale: float,
    magnitude: torch.Tensor,
    *,
    is_table: bool,
) -> torch.Tensor:
    """DoRA's factor of each output, f32 [out]: magnitude / ‖row of W + scale · B · A‖ (Liu et al. 2024).

    `weight` [out, in], or an embedding's table [in, out] (`is_table`); `key` is the magnitude's, for messages. Computed
    in f64, so that neither the machine nor its threads have a say in the bits.
    """
    a, b = a.double() * scale, b.double()
    squares = torch.zeros(len(b), dtype=torch.float64)
    for begin in range(0, len(weight), _ROWS):
        some = slice(begin, begin + _ROWS)
        rows = torch.from_numpy(weight[some]).double()
        if is_table:
            squares += rows.addmm(a[:, some].T, b.T).square().sum(dim=0)
        else:
            squares[some] = rows.addmm(b[some], a).square().sum(dim=1)
    gain = (magnitude.double() / squares.sqrt()).float()
    if not bool(torch.isfinite(gain).all()):
        row = int((~torch.isfinite(gain)).nonzero()[0])
        raise reject(
            "adapter_not_finite",
            f"tensor {key}: row {row} of the weight that it scales has the norm {float(squares[row]) ** 0.5:g}, so its "
            f"factor isn't finite",
        )
    return gain
