"""A weight of four bits as kernels see it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

HALF = 32
"""Columns that share a scale at least."""

UNIT = 2 * HALF
"""Columns whose codes lie together."""


class Int4Weight(NamedTuple):
    """A matrix [out, in] of scale · code − offset, with a scale and an offset for each row and group of columns."""

    codes: Tensor
    """u8 [units, out, 32]. Byte j of unit u has column 64u + j in its low half and column 64u + 32 + j in its high one:
    neighbours in memory are rows, and each half of a unit has one scale. Columns past the last are 0."""
    scales: Tensor
    """f16 or f32 [groups, out, 2]: scale and offset. Of f16 where that holds all of the file's exactly, else of f32:
    what's dequantised is what the file says. One word of two, as loads of two bytes can't be made ahead of time."""
    inputs: int
    """Columns of the matrix."""
    group: int
    """Columns of a group, a multiple of 32; 0: all."""

    @property
    def outputs(self) -> int:
        """Rows of the matrix."""
        return self.codes.shape[1]

    @property
    def bytes(self) -> int:
        """Bytes of memory."""
        return self.codes.nbytes + self.scales.nbytes


def stack(parts: list[Int4Weight]) -> Int4Weight:
    """Weights over one input, outputs side by side. Raises ValueError if their inputs or groups differ."""
    inputs, group = parts[0].inputs, parts[0].group
    if any((part.inputs, part.group) != (inputs, group) for part in parts):
        raise ValueError(f"inputs and groups differ: {[(part.inputs, part.group) for part in parts]}")
    wide = torch.float16 if all(part.scales.dtype == torch.float16 for part in parts) else torch.float32
    return Int4Weight(
        torch.cat([part.codes for part in parts], 1),
        torch.cat([part.scales.to(wide) for part in parts], 1),
        inputs,
        group,
    )
