"""Four-bit products by their definition, on the kernels' buffers. Workspaces stay as they are."""

from __future__ import annotations

from torch import Tensor

from lorad.kernels.int4 import ref
from lorad.kernels.int4.weight import Int4Weight
from lorad.kernels.launch import launch


def int4_matmul(y: Tensor, x: Tensor, weight: Int4Weight, bias: Tensor | None, workspace: Tensor) -> None:
    launch(_int4_matmul, None, y, x, weight, bias, workspace)


def _int4_matmul(y: Tensor, x: Tensor, weight: Int4Weight, bias: Tensor | None, workspace: Tensor) -> None:
    y.copy_(ref.int4_matmul(x, weight, bias))
