"""Random weights in the four-bit formats of files, and what they say in floats."""

from __future__ import annotations

from typing import NamedTuple

import gguf
import numpy as np
import torch
from torch import Tensor

from lorad.kernels.int4 import pack
from lorad.kernels.int4.weight import Int4Weight

GPTQ_ORDER = tuple(range(8))
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Both(NamedTuple):
    packed: Int4Weight
    floats: Tensor
    """f32 [out, in]."""


def of_gguf(random: torch.Generator, kind: str, outputs: int, inputs: int) -> Both:
    """Random bits but for the scales of blocks, which are random numbers."""
    columns, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = torch.randint(256, (outputs, inputs // columns, size), generator=random, dtype=torch.uint8)
    halves = 1 if kind == "Q4_0" else 2
    scales = torch.randn(*blocks.shape[:2], halves, generator=random).half() / (200 if kind == "Q4_K" else 5)
    blocks[..., : 2 * halves] = scales.view(torch.uint8)
    blocks = blocks.flatten(1)
    floats = gguf.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind])
    return Both(pack.from_gguf(kind, blocks), torch.from_numpy(floats))


class Grouped(NamedTuple):
    """What GPTQ and AWQ have in common: w = scale · (code − zero)."""

    codes: Tensor  # i64 [in, out]
    zeros: Tensor  # i64 [groups, out]
    scales: Tensor  # f16 [groups, out]
    group: int
    """0: all columns."""

    @property
    def floats(self) -> Tensor:
        """f32 [out, in]."""
        group = torch.arange(len(self.codes)) // (self.group or len(self.codes))
        return (self.scales.float()[group] * (self.codes - self.zeros[group])).T

    @classmethod
    def of(cls, random: torch.Generator, outputs: int, inputs: int, group: int, zero_min: int) -> Grouped:
        groups = -(-inputs // (group or inputs))
        return cls(
            torch.randint(16, (inputs, outputs), generator=random),
            torch.randint(zero_min, zero_min + 16, (groups, outputs), generator=random),
            (torch.rand(groups, outputs, generator=random) / 10).half(),
            group,
        )


def words(
    halves: Tensor,  # i64 [rows, columns], 0 to 15
    order: tuple[int, ...],
) -> Tensor:
    """i32 [rows, columns / 8]: a word of each eight neighbours, the lowest half byte holding that which `order` names
    first."""
    eight = halves.numpy().astype(np.uint32).reshape(len(halves), -1, 8)[..., list(order)]
    packed = np.bitwise_or.reduce(eight << (4 * np.arange(8, dtype=np.uint32)), -1)
    return torch.from_numpy(packed.view(np.int32))


def of_gptq(random: torch.Generator, outputs: int, inputs: int, group: int, *, v2: bool = False) -> Both:
    """Version 1 unless `v2`."""
    stored_less = 0 if v2 else 1
    grouped = Grouped.of(random, outputs, inputs, group, stored_less)
    qweight = words(grouped.codes.T, GPTQ_ORDER).T.contiguous()
    qzeros = words(grouped.zeros - stored_less, GPTQ_ORDER)
    g_idx = (torch.arange(inputs) // (group or inputs)).int()
    return Both(pack.from_gptq(qweight, qzeros, grouped.scales, group, g_idx, v2=v2), grouped.floats)


def of_awq(random: torch.Generator, outputs: int, inputs: int, group: int) -> Both:
    grouped = Grouped.of(random, outputs, inputs, group, 0)
    packed = pack.from_awq(words(grouped.codes, AWQ_ORDER), words(grouped.zeros, AWQ_ORDER), grouped.scales, group)
    return Both(packed, grouped.floats)
