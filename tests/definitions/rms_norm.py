"""Norms by their definition, on the kernels' buffers."""

from __future__ import annotations

from torch import Tensor

from lorad.kernels.launch import launch
from lorad.kernels.rms_norm import ref


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    launch(_rms_norm, None, out, x, weight, eps)


def add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    launch(_add_rms_norm, None, out, residual, x, weight, eps)


def _rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    out.copy_(ref.rms_norm(x.float(), weight.float(), eps))


def _add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    residual.copy_(residual.float() + x.float())
    _rms_norm(out, residual, weight, eps)
