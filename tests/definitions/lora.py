"""Batched LoRA by its definition, on the buffers of the kernels: what they write in the end, not their workspaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.lora import ref
from lorad.kernels.lora.table import BIASES_SHIFT, ELEMENTS, GAINS_SHIFT, LINE_BYTES, Table

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def lora(
    y: Tensor,
    x: Tensor,
    arena: Tensor,
    table: Table,
    tiles: Tensor,
    count: Tensor,
    layer: int,
    modules: Sequence[int],
    columns: Sequence[int],
    widths: Sequence[int],
    workspace: Tensor,
) -> None:
    """In the place of `kernels.lora.kernel.lora`."""
    launch(_lora, None, y, x, arena, table, tiles, count, layer, modules, columns, widths, workspace)


def lora_embed(
    hidden: Tensor, ids: Tensor, arena: Tensor, table: Table, tiles: Tensor, count: Tensor, layer: int, module: int
) -> None:
    """In the place of `kernels.lora.kernel.lora_embed`."""
    launch(_lora_embed, None, hidden, ids, arena, table, tiles, count, layer, module)


def _lora(y, x, arena, table, tiles, count, layer, modules, columns, widths, _workspace) -> None:
    for slot, right, begin, end in groups_of(table, tiles, count):
        for module, column, width in zip(modules, columns, widths, strict=True):
            weights = weights_of(arena, table, slot, layer, module, x.shape[1], width) if right else None
            _add(y[begin:end, column : column + width], x[begin:end].float(), module, right, weights)


def _lora_embed(hidden, ids, arena, table, tiles, count, layer, module) -> None:
    for slot, right, begin, end in groups_of(table, tiles, count):
        used, row = ids[begin:end].long().unique(return_inverse=True)
        weights = None
        if right:
            weights = weights_of(arena, table, slot, layer, module, None, hidden.shape[1])
        if weights is not None:
            weights = weights._replace(a=weights.a[:, used])
        _add(hidden[begin:end], torch.eye(len(used))[row], module, right, weights)


def _add(y: Tensor, x: Tensor, module: int, right: bool, weights: ref.Weights | None) -> None:
    adapter: Mapping[int, ref.Weights] | None = {} if right else None
    if weights is not None:
        adapter = {module: weights}
    if adapter != {}:
        y.copy_(ref.lora(y.float(), x, [module], [0], [(0, len(y), adapter)]))


def groups_of(table: Table, tiles: Tensor, count: Tensor) -> list[tuple[int, bool, int, int]]:
    """(slot, whether it holds that adapter, first token, one past the last): an adapter's neighbouring tiles joined."""
    tags = table.tags.tolist()
    groups: list[tuple[int, bool, int, int]] = []
    for slot, tag, first, end in tiles[: int(count)].tolist():
        right = 0 <= slot < len(tags) and tags[slot] == tag != 0
        joins = bool(groups) and groups[-1][:2] == (slot, right) and groups[-1][3] == first
        begin = groups.pop()[2] if joins else first
        groups.append((slot, right, begin, end))
    return groups


def weights_of(
    arena: Tensor, table: Table, slot: int, layer: int, module: int, inputs: int | None, outputs: int
) -> ref.Weights | None:
    """As the table has them, f32; None: not adapted. `inputs`: None where only the runs tell."""
    place = layer * table.modules + module
    first, a_runs, b_runs, word = table.spans[slot, place].tolist()
    gains, biases = word >> GAINS_SHIFT & 0xFFF, word >> BIASES_SHIFT
    if a_runs + gains + biases == 0:
        return None
    element = TORCH[ELEMENTS[word & 0xF]]
    flat, runs = arena.view(-1), table.runs[first : first + a_runs + b_runs + gains + biases].tolist()
    a, b, gain, bias = (
        runs[begin : begin + count]
        for begin, count in (
            (0, a_runs),
            (a_runs, b_runs),
            (a_runs + b_runs, gains),
            (a_runs + b_runs + gains, biases),
        )
    )
    rank = (a[-1][1] & 0xFFFF) + (a[-1][1] >> 16) if a else 0
    if inputs is None:
        inputs = max((begin + length for _, _, begin, length in a), default=0)
        inputs = max(inputs, 1)
    return ref.Weights(
        _block(flat, a, rank, inputs, element),
        _block(flat, b, rank, outputs, element).T,
        float(table.scales[slot, place]),
        _block(flat, gain, 1, outputs, torch.float32)[0] if gains else None,
        _block(flat, bias, 1, outputs, torch.float32)[0] if biases else None,
    )


def _block(flat: Tensor, runs: list[list[int]], rows: int, width: int, element: torch.dtype) -> Tensor:
    """f32 [rows, width]; what no run has is NaN."""
    block = torch.full((rows, width), torch.nan)
    for address, rank, begin, length in runs:
        row, count = rank & 0xFFFF, rank >> 16
        data = flat[address * LINE_BYTES :][: count * length * element.itemsize]
        block[row : row + count, begin : begin + length] = data.view(element).view(count, length).float()
    return block
