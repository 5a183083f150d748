"""Blocks of GGUF's quantised number types: values rounded to them (some gguf-py only reads), random bytes."""

from __future__ import annotations

import gguf
import numpy as np
from numpy.typing import NDArray

HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where the f16 scalars of a block lie: all else may be any bytes."""


def size(kind: str) -> tuple[int, int]:
    """Columns and bytes of a block."""
    columns, count = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return columns, count


def random_blocks(rng: np.random.Generator, kind: str, rows: int, cols: int) -> NDArray[np.uint8]:
    """[rows, bytes of a row] of random bytes; scalars are finite, many of them zero, subnormal, negative or largest."""
    columns, count = size(kind)
    data = rng.integers(0, 256, (rows, cols // columns, count), dtype=np.uint8)
    for at in HALVES[kind]:
        scalars = rng.standard_normal(data.shape[:2]).astype(np.float16)
        special = np.array([0, -0.0, 6e-8, -6e-8, 65504, -65504, 1, 6e-5], dtype=np.float16)
        scalars = np.where(rng.random(scalars.shape) < 0.5, rng.choice(special, scalars.shape), scalars)
        data[:, :, at : at + 2] = scalars.view(np.uint8).reshape(*scalars.shape, 2)
    # Whole blocks of one byte too: quants and sub-scales of zero and at their most.
    for value in (0x00, 0xFF, 0x7F, 0x80):
        chosen = rng.random(data.shape[:2]) < 0.1
        kept = [data[:, :, at : at + 2].copy() for at in HALVES[kind]]
        data[chosen] = value
        for at, scalars in zip(HALVES[kind], kept, strict=True):
            data[:, :, at : at + 2] = scalars
    return data.reshape(rows, -1)


def quantize(values: NDArray[np.float32], kind: str) -> NDArray[np.uint8]:
    """f32 [..., cols] as [..., bytes of a row]; a type without blocks as gguf-py has it."""
    if kind in ("Q4_K", "Q5_K"):
        blocks = _four_or_five(values.reshape(-1, 256), 4 if kind == "Q4_K" else 5)
    elif kind == "Q6_K":
        blocks = _six(values.reshape(-1, 256))
    else:
        return np.asarray(gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]))
    return blocks.reshape(*values.shape[:-1], -1)


def _four_or_five(values: NDArray[np.float32], bits: int) -> NDArray[np.uint8]:
    """Each 32 values between their least (or zero) and their most, in steps and minima of 6 bits."""
    most = (1 << bits) - 1
    x = values.reshape(-1, 8, 32)
    least = np.minimum(x.min(-1), 0)
    step = (np.maximum(x.max(-1), 0) - least) / most
    d, sc = _sub_scales(step, 63)
    dmin, m = _sub_scales(-least, 63)
    q = (x + _wide(dmin, m)) / np.maximum(_wide(d, sc), 1e-30)
    q = q.round().clip(0, most).astype(np.uint8)
    sub = [sc[:, :4] | sc[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4]
    pairs = (q & 15).reshape(-1, 4, 2, 32)
    low = pairs[:, :, 0] | pairs[:, :, 1] << 4
    fifth = np.bitwise_or.reduce(q >> 4 << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    parts = [d.view(np.uint8), dmin.view(np.uint8), *sub, *([fifth] if bits == 5 else []), low.reshape(-1, 128)]
    return np.concatenate(parts, axis=1)


def _six(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Each 16 values between plus and minus their largest, in steps of 8 bits, some of them negative."""
    x = values.reshape(-1, 16, 16)
    # The largest value becomes -32 steps, so a step has the other sign.
    largest = np.take_along_axis(x, abs(x).argmax(-1)[..., None], -1)[..., 0]
    d, sc = _sub_scales(abs(largest) / 32, 127)
    signed = np.where(largest > 0, -1, 1) * sc.astype(np.int8)
    step = _wide(d, signed)
    q = (np.divide(x, step, out=np.zeros_like(x), where=step != 0).round().clip(-32, 31) + 32).astype(np.uint8)
    q = q.reshape(-1, 256)
    low = (q & 15).reshape(-1, 2, 2, 64)
    high = q.reshape(-1, 2, 4, 32) >> 4 << np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    parts = [
        (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128),
        np.bitwise_or.reduce(high, axis=2).reshape(-1, 64),
        signed.astype(np.int8).view(np.uint8),
        d.view(np.uint8),
    ]
    return np.concatenate(parts, axis=1)


def _sub_scales(wanted: NDArray[np.float32], most: int) -> tuple[NDArray[np.float16], NDArray[np.uint8]]:
    """`wanted` [blocks, subs], not negative, as f16 [blocks, 1] by integers up to `most`."""
    d = (wanted.max(-1, keepdims=True) / most).astype(np.float16)
    whole = wanted / np.maximum(d.astype(np.float32), 1e-30)
    return d, whole.round().clip(0, most).astype(np.uint8)


def _wide(d: NDArray[np.float16], sub: NDArray[np.integer]) -> NDArray[np.float32]:
    return (d.astype(np.float32) * sub.astype(np.float32))[..., None]
