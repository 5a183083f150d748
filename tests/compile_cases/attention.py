"""Attention of real models: activations and pages of the same type, and of different ones."""

from __future__ import annotations

import torch

from lorad.kernels.attention.kernel import attention, attention_decode, decode_workspace
from model_shapes import LLAMA_3_8B, SHAPES, SMOLLM2_135M, Shape, empty_pages, empty_qkv, ints


def cases() -> None:
    for shape in SHAPES:
        case(shape, torch.bfloat16, torch.bfloat16)
    for shape in (LLAMA_3_8B, SMOLLM2_135M):
        case(shape, torch.float16, torch.float16, page_tokens=64)
    case(SMOLLM2_135M, torch.float32, torch.float32)
    case(LLAMA_3_8B, torch.float32, torch.bfloat16)
    case(LLAMA_3_8B, torch.bfloat16, torch.float16, page_tokens=8)


def case(shape: Shape, of: torch.dtype, kept: torch.dtype, *, page_tokens: int = 16) -> None:
    tokens, rows, splits = 256, 64, 8
    pages, qkv = empty_pages(shape, kept, page_tokens=page_tokens), empty_qkv(shape, tokens, of)
    out = torch.empty(tokens, shape.heads * shape.head_dim, dtype=of)
    row_line, row_start, row_offset = ints(rows), ints(rows), ints(rows + 1)
    scale = shape.head_dim**-0.5
    attention(out, qkv, pages, 3, ints(80, 2), ints(1), row_line, row_start, row_offset, scale, shape.window)
    workspace = torch.empty(decode_workspace(rows, shape.heads, shape.head_dim, splits))
    attention_decode(
        out, qkv, pages, 3, ints(1), row_line, row_start, row_offset, scale, shape.window, splits, workspace
    )
