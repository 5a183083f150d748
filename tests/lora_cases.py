"""Calls of batched LoRA, for kernels and definitions: shapes that don't divide, adapters cut by small pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from definitions import lora as by_definition
from gpu_adapters import LAYER, GpuAdapters, Tile, tiles_of, work_list
from lorad.kernels.lora import ref
from lorad.kernels.lora.expand import expand
from lorad.kernels.lora.fused import fused
from lorad.kernels.lora.kernel import lora
from lorad.kernels.lora.shrink import shrink, workspace_shape
from lorad.kernels.lora.table import Table

Operator = Callable[..., None]
On = Callable[[Operator], Operator]

# How far a number may be from its definition's, by what y is rounded to.
CLOSE = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 5e-3}


class Case(NamedTuple):
    """A call of `lora`."""

    adapters: GpuAdapters
    arena: Tensor
    table: Table
    x: Tensor
    y: Tensor
    columns: list[int]
    widths: list[int]
    tiles: list[Tile]

    def run(
        self,
        form: str,
        x: Tensor | None = None,
        y: Tensor | None = None,
        tiles: list[Tile] | None = None,
        room: int = 3,
        on: On = lambda operator: operator,
    ) -> Tensor:
        """Returns y. `form`: `lora`, or how it's done, or `definition`; `on`: has a kernel run elsewhere."""
        x, y = self.x if x is None else x, (self.y if y is None else y).clone()
        work = work_list(self.tiles if tiles is None else tiles, room)
        modules, rank_max = range(len(self.widths)), self.adapters.rank_max
        workspace = torch.full(workspace_shape(*x.shape, len(modules), rank_max), torch.nan)
        where = (self.arena, self.table, *work, LAYER, modules)
        outputs = (self.columns, self.widths)
        if form == "fused":
            on(fused)(y, x, *where, *outputs, rank_max)
        elif form == "two":
            on(shrink)(workspace, x, *where)
            on(expand)(y, x, workspace, *where, *outputs)
        elif form == "lora":
            on(lora)(y, x, *where, *outputs, workspace)
        else:
            by_definition.lora(y, x, *where, *outputs, workspace)
        return y

    def wanted(self) -> Tensor:
        """By the weights that the adapters were made of."""
        count, out = len(self.adapters.weights), self.y.float().clone()
        for slot, tag, begin, end in self.tiles:
            right = 0 <= slot < count and tag == 1000 + slot
            for module, (at, width) in enumerate(zip(self.columns, self.widths, strict=True)):
                adapter = self.adapters.weights[slot] if right else None
                rows, wide = slice(begin, end), slice(at, at + width)
                groups = [(0, end - begin, adapter)]
                out[rows, wide] = ref.lora(out[rows, wide], self.x[rows].float(), [module], [0], groups)
        return out


def make(
    seed: int,
    inputs: int,
    widths: list[int],
    page_bytes: int,
    dtype: torch.dtype,
    adapters: list[dict[str, Any]],
    groups: list[tuple[int, int]],
    *,
    y_dtype: torch.dtype | None = None,
    neighbours: bool = False,
) -> Case:
    """`groups`: (slot, tokens), in order; slot −1: rows of the base, −2: of a wrong tag, −3: of an impossible slot."""
    rng = np.random.default_rng(seed)
    made = GpuAdapters(rng, [(inputs, width) for width in widths], page_bytes)
    for adapter in adapters:
        made.add(**adapter)
    arena, table = made.build(neighbours=neighbours)
    tiles: list[Tile] = []
    at = 1
    for slot, tokens in groups:
        empty = len(adapters)
        wrong = {-2: (0, 999), -3: (empty + 1, 1000), -4: (-1, 1000), -5: (empty, 0)}
        if slot >= 0:
            tiles += tiles_of(slot, at, tokens)
        elif slot != -1:
            tiles += tiles_of(wrong[slot][0], at, tokens, wrong[slot][1])
        at += tokens
    columns = [2 + sum(widths[:i]) + i for i in range(len(widths))]
    total = columns[-1] + widths[-1] + 1
    x = torch.from_numpy(rng.standard_normal((at + 2, inputs), dtype=np.float32)).to(dtype)
    y = torch.from_numpy(rng.standard_normal((at + 2, total), dtype=np.float32)).to(y_dtype or dtype)
    return Case(made, arena, table.table, x, y, columns, widths, tiles)


def check(case: Case, got: Tensor) -> None:
    """That it's what the definition says, and the very same where no tile and no module is."""
    wanted = case.wanted()
    tolerance = CLOSE[case.y.dtype]
    if case.y.dtype == torch.float32 and case.x.dtype != torch.float32:
        tolerance = 5e-5  # s in two halves
    touched = torch.zeros(case.y.shape, dtype=torch.bool)
    for _, _, begin, end in case.tiles:
        for at, width in zip(case.columns, case.widths, strict=True):
            touched[begin:end, at : at + width] = True
    assert torch.equal(got[~touched], case.y[~touched])
    size = float(wanted.nan_to_num().abs().max())
    torch.testing.assert_close(got.float(), wanted, rtol=tolerance, atol=tolerance * size, equal_nan=True)


MIXED: list[dict[str, Any]] = [
    {"rank": 3, "element": "bf16", "modules": [0, 2]},
    {"rank": 40, "element": "f32", "modules": [0, 1, 2], "gains": True},
    {"rank": 17, "element": "f16", "modules": [1], "biases": True},
    {"rank": 0, "element": "bf16", "modules": [0], "gains": True, "biases": True},
    {"rank": 8, "element": "bf16", "modules": [0, 1, 2], "gains": True, "biases": True},
]
GROUPS = [(4, 1), (0, 18), (-1, 3), (1, 2), (-2, 2), (2, 1), (3, 2), (-1, 1), (-3, 1), (-4, 1), (-5, 1)]
