"""From the four-bit formats of files to `Int4Weight`, and back to floats."""

from __future__ import annotations

import torch
from torch import Tensor

from lorad.kernels.int4.weight import HALF, UNIT, Int4Weight

GGUF_KINDS = ("Q4_0", "Q4_1", "Q4_K")
"""Quantised types of GGUF that have four bits."""

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column, of eight neighbours, of each half byte of a word, from the lowest."""


def from_gguf(
    kind: str,  # one of GGUF_KINDS
    blocks: Tensor,  # u8 [out, bytes of a row]
) -> Int4Weight:
    """Blocks as ggml-common.h has them; groups of 32. Raises ValueError for another kind."""
    out = len(blocks)
    if kind == "Q4_0":
        blocks = blocks.view(out, -1, 18)
        scale = _f16(blocks[..., :2])
        codes, offset = _halves(blocks[..., 2:]), 8 * scale
    elif kind == "Q4_1":
        blocks = blocks.view(out, -1, 20)
        scale, offset = _f16(blocks[..., :2]), -_f16(blocks[..., 2:4])
        codes = _halves(blocks[..., 4:])
    elif kind == "Q4_K":
        blocks = blocks.view(out, -1, 144)
        fine, minimum = _k_scales(blocks[..., 4:16])
        scale, offset = _f16(blocks[..., :2])[..., None] * fine, _f16(blocks[..., 2:4])[..., None] * minimum
        codes = _halves(blocks[..., 16:].reshape(out, -1, 32))
    else:
        raise ValueError(f"{kind} isn't one of {', '.join(GGUF_KINDS)}")
    return _packed(codes.reshape(out, -1), scale.reshape(out, -1), offset.reshape(out, -1), 32)


def from_gptq(
    qweight: Tensor,  # i32 [in / 8, out]: eight rows of Wᵀ from the lowest half byte
    qzeros: Tensor,  # i32 [groups, out / 8]: eight columns of Wᵀ likewise
    scales: Tensor,  # f16 or bf16 [groups, out]
    group: int,  # columns; 0: all
    g_idx: Tensor | None = None,  # i32 [in], the group of each column of W
    *,
    v2: bool = False,
) -> Int4Weight:
    """scale · (code − zero) (Frantar et al. 2022, arXiv:2210.17323). Files of version 1 have zeros less one.

    Columns in an order of their own (`desc_act`) are refused with ValueError: x would have to be permuted first.
    """
    codes, zeros = _nibbles(qweight.T), _nibbles(qzeros).float() + (0 if v2 else 1)
    return _grouped(codes.flatten(1), zeros.flatten(1), scales, group, g_idx)


def from_awq(
    qweight: Tensor,  # i32 [in, out / 8]: eight columns of Wᵀ in the order 0, 2, 4, 6, 1, 3, 5, 7
    qzeros: Tensor,  # i32 [groups, out / 8]: likewise
    scales: Tensor,  # f16 or bf16 [groups, out]
    group: int,  # columns; 0: all
) -> Int4Weight:
    """scale · (code − zero) (Lin et al. 2023, arXiv:2306.00978), as AutoAWQ's GEMM version stores it."""
    place = torch.tensor(_AWQ_ORDER, device=qweight.device).argsort()
    codes, zeros = (_nibbles(words)[..., place].flatten(1) for words in (qweight, qzeros))
    return _grouped(codes.T, zeros.float(), scales, group, None)


def unpack(weight: Int4Weight) -> Tensor:
    """f32 [out, in], as dequantised."""
    codes = _halves(weight.codes).transpose(0, 1).flatten(1)[:, : weight.inputs]
    column = torch.arange(weight.inputs, device=codes.device)
    scale, offset = weight.scales.float()[column // (weight.group or weight.inputs)].unbind(-1)
    return scale.T * codes - offset.T


def _grouped(
    codes: Tensor,  # u8 [out, in]
    zeros: Tensor,  # f32 [groups, out]
    scales: Tensor,  # [groups, out]
    group: int,
    g_idx: Tensor | None,
) -> Int4Weight:
    out, inputs = codes.shape
    if group % HALF:
        raise ValueError(f"groups of {group} columns; a multiple of {HALF} is needed")
    shape = (-(-inputs // (group or inputs)), out)
    if zeros.shape != shape or scales.shape != shape:
        raise ValueError(f"zeros {list(zeros.shape)} and scales {list(scales.shape)}, not {list(shape)}")
    column = torch.arange(inputs, device=codes.device)
    if g_idx is not None and not torch.equal(g_idx.long(), column // (group or inputs)):
        raise ValueError("columns are in an order of their own (desc_act)")
    scale = scales.float()
    return _packed(codes, scale.T, (scale * zeros).T, group)


def _packed(
    codes: Tensor,  # u8 [out, in]
    scale: Tensor,  # f32 [out, groups]
    offset: Tensor,  # f32 [out, groups]
    group: int,
) -> Int4Weight:
    out, inputs = codes.shape
    padded = torch.nn.functional.pad(codes, (0, -inputs % UNIT)).view(out, -1, 2, HALF)
    together = (padded[:, :, 0] | padded[:, :, 1] << 4).transpose(0, 1).contiguous()
    scales = torch.stack([scale.T, offset.T], -1).contiguous()
    exact = torch.equal(scales.half().float(), scales)
    return Int4Weight(together, scales.half() if exact else scales, inputs, group)


def _f16(
    raw: Tensor,  # u8 [..., 2]
) -> Tensor:
    """f32 [...]."""
    return raw.contiguous().view(torch.float16)[..., 0].float()


def _halves(
    raw: Tensor,  # u8 [..., bytes]
) -> Tensor:
    """u8 [..., 2 · bytes]: low halves of all bytes, then high ones."""
    return torch.cat([raw & 15, raw >> 4], -1)


def _nibbles(
    words: Tensor,  # i32 [..., words]
) -> Tensor:
    """u8 [..., words, 8], from the lowest."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return (words[..., None] >> shifts & 15).to(torch.uint8)


def _k_scales(
    raw: Tensor,  # u8 [..., 12]
) -> tuple[Tensor, Tensor]:
    """f32 [..., 8] each: scales and minima of 6 bits. The first four have them together, the others in two parts."""
    first, second, low = raw.reshape(*raw.shape[:-1], 3, 4).unbind(-2)
    scales = torch.cat([first & 63, low & 15 | first >> 6 << 4], -1)
    minima = torch.cat([second & 63, low >> 4 | second >> 6 << 4], -1)
    return scales.float(), minima.float()
