"""Batched LoRA as Llama 3 8B and SmolLM2 135M have it."""

from __future__ import annotations

import torch

from lorad.kernels.lora.kernel import lora, lora_embed, workspace_shape
from lorad.kernels.lora.table import Table
from lorad.kernels.lora.tiles import split_of

SLOTS, MODULES, TILES = 64, 9, 80

# (in, widths) of each product, then the vocabulary
LLAMA = ([(4096, (4096, 1024, 1024)), (4096, (4096,)), (4096, (14336, 14336)), (14336, (4096,))], 128256)
SMOL = ([(576, (576, 192, 192)), (576, (576,)), (576, (1536, 1536)), (1536, (576,))], 49152)


def cases() -> None:
    for layers, page_bytes, (products, vocab) in ((32, 1 << 21, LLAMA), (30, 368640, SMOL)):
        table = Table(
            empty(SLOTS, torch.int32),
            empty((SLOTS, layers * MODULES, 4), torch.int32),
            empty((SLOTS, layers * MODULES), torch.float32),
            empty((1 << 16, 4), torch.int32),
            MODULES,
        )
        arena = empty((1000, page_bytes), torch.uint8)
        work = (empty((TILES, 4), torch.int32), empty(1, torch.int32))
        hidden = products[0][0]
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for tokens, rank_max in ((8, 16), (8, 64), (2048, 64)):
                for inputs, widths in products if dtype == torch.bfloat16 else products[:1]:
                    add(dtype, tokens, inputs, widths, rank_max, arena, table, work)
            add(dtype, 8, hidden, (vocab,), 64, arena, table, work, y_dtype=torch.float32)
            lora_embed(empty((2048, hidden), dtype), empty(2048, torch.int32), arena, table, *work, 0, 7)
    assert {split_of(width).blocks for width in (576, 1536, 4096, 14336)} == {2, 3, 8, 16}  # all of them are compiled


def add(dtype, tokens, inputs, widths, rank_max, arena, table, work, y_dtype=None) -> None:
    columns = [sum(widths[:i]) for i in range(len(widths))]
    workspace = empty(workspace_shape(tokens, inputs, len(widths), rank_max), torch.float32)
    x, y = empty((tokens, inputs), dtype), empty((tokens, sum(widths)), y_dtype or dtype)
    lora(y, x, arena, table, *work, 3, range(len(widths)), columns, widths, workspace)


def empty(shape: int | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
