"""The gates of `ref.py`, element by element."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lorad.kernels.gate_mul.ref import GATES
from lorad.kernels.gate_mul.tiles import TILES
from lorad.kernels.launch import launch
from lorad.kernels.require import FLOATS, require


def gate_mul(
    out: Tensor,  # T [n, width]
    gate_up: Tensor,  # T [n, 2 · width]: z, then up
    gate: str,
) -> None:
    """out = gate(z) · up; each T f32, f16 or bf16 by itself; computed in f32.

    Raises ValueError if shapes or types differ from those, or `gate` is none of `GATES`.
    """
    require("out", out, (None, None), *FLOATS)
    n, width = out.shape
    require("gate_up", gate_up, (n, 2 * width), *FLOATS)
    if gate not in GATES:
        raise ValueError(f"gate is {gate!r}, not one of {', '.join(GATES)}")
    columns = min(TILES.columns, triton.next_power_of_2(width))
    grid = (n, triton.cdiv(width, columns))
    launch(_gate_mul, grid, out, gate_up, width, GATE=gate, BLOCK=columns, num_warps=TILES.warps)


@triton.jit  # type: ignore[untyped-decorator]
def _gate_mul(
    out: tl.tensor,  # [n, width]
    gate_up: tl.tensor,  # [n, 2 · width]
    width: tl.tensor,
    GATE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    left = gate_up + 2 * row + column
    z = tl.load(left, mask=inside, other=0).to(tl.float32)
    up = tl.load(left + width, mask=inside, other=0).to(tl.float32)
    if GATE == "silu":
        steep = z
    else:  # (1 + tanh u) / 2 is the logistic function of 2 u
        steep = 1.5957691216057308 * (z + 0.044715 * z * z * z)
    # The exponent is never positive: nothing overflows, and digits of large negative arguments stay.
    small = tl.exp(-tl.abs(steep))
    opened = tl.where(steep >= 0, 1.0, small) / (1.0 + small)
    tl.store(out + row + column, (z * opened * up).to(out.dtype.element_ty), mask=inside)
