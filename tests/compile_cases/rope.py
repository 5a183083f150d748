"""Rotations of real models, with and without norms of heads."""

from __future__ import annotations

import torch

from lorad.kernels.rope.kernel import HeadNorms, rope_write
from model_shapes import LLAMA_3_8B, SHAPES, SMOLLM2_135M, Shape, empty_pages, empty_qkv, ints


def cases() -> None:
    for shape in SHAPES:
        case(shape, torch.bfloat16, torch.bfloat16)
    case(LLAMA_3_8B, torch.float16, torch.float16)
    case(SMOLLM2_135M, torch.float32, torch.float16)
    case(SMOLLM2_135M, torch.float32, torch.float32)


def case(shape: Shape, of: torch.dtype, kept: torch.dtype) -> None:
    qkv, tokens = empty_qkv(shape, 256, of), 256
    cos, sin = torch.empty(2, 8192, shape.head_dim // 2)
    norms = HeadNorms(torch.empty(shape.head_dim), torch.empty(shape.head_dim), 1e-6)
    for given in (None, norms):
        rope_write(qkv, cos, sin, ints(tokens), ints(tokens), ints(1), empty_pages(shape, kept), 3, given)
