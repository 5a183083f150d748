"""y += scale · (x Aᵀ) B for each tile, then y = gain · y + bias: `ref.py` over the work list and the arena."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lorad.kernels.lora.embed import lora_embed
from lorad.kernels.lora.expand import expand
from lorad.kernels.lora.fused import fused
from lorad.kernels.lora.launching import ELEMENT
from lorad.kernels.lora.shrink import shrink, workspace_shape
from lorad.kernels.lora.table import Table
from lorad.kernels.lora.tiles import fused_pays

__all__ = ["lora", "lora_embed", "workspace_shape"]


def lora(
    y: Tensor,  # [n, width] x's type or f32; rows contiguous
    x: Tensor,  # [n, in] f32, f16 or bf16; rows contiguous
    arena: Tensor,  # u8 [pages, page_bytes]
    table: Table,
    tiles: Tensor,  # i32 [tiles_max, 4] (slot, tag, first token, one past the last), 16 tokens at most
    count: Tensor,  # i32 [1]: how many tiles there are; the others are anything
    layer: int,
    modules: Sequence[int],  # 1 to 3 that read x
    columns: Sequence[int],  # where each module's columns of y begin
    widths: Sequence[int],  # how many they are
    workspace: Tensor,  # f32, contiguous, of `workspace_shape`, whose last is the highest rank of any adapter
) -> None:
    """Adds the tiles' adapters to the rows of y of their tokens, in the modules' columns alone.

    Tiles have disjoint tokens, modules disjoint columns. A module that an adapter hasn't got changes nothing. A slot
    that is out of range or holds another adapter than the tile's makes the columns of all modules NaN. What is summed
    in which order follows from the shapes of x and workspace but for n, so a row has the same bits alone and in
    company.
    Two launches, or one. ValueError for shapes and types that don't fit.
    """
    tokens, inputs = x.shape
    if not 1 <= len(modules) == len(columns) == len(widths) <= 3:
        raise ValueError(f"{len(modules)} modules, {len(columns)} columns, {len(widths)} widths; 1 to 3 of each")
    if x.dtype not in ELEMENT or y.dtype not in (x.dtype, torch.float32):
        raise ValueError(f"x of {x.dtype} and y of {y.dtype}")
    if len(y) != tokens or any(at + wide > y.shape[1] for at, wide in zip(columns, widths, strict=True)):
        raise ValueError(f"y {tuple(y.shape)} for {tokens} rows of x and columns {columns} of widths {widths}")
    if x.stride(1) != 1 or y.stride(1) != 1 or not workspace.is_contiguous():
        raise ValueError("rows of x and y and the workspace must be contiguous")
    rank_max = workspace.shape[-1]
    if tuple(workspace.shape) != workspace_shape(tokens, inputs, len(modules), rank_max):
        raise ValueError(f"workspace {tuple(workspace.shape)} for x {tuple(x.shape)} and {len(modules)} modules")
    if fused_pays(tokens, inputs):
        fused(y, x, arena, table, tiles, count, layer, modules, columns, widths, rank_max)
    else:
        shrink(workspace, x, arena, table, tiles, count, layer, modules)
        expand(y, x, workspace, arena, table, tiles, count, layer, modules, columns, widths)
