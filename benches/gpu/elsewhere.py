"""Kernels that are given CPU tensors and run on a device, so that tests' cases serve for it too."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def elsewhere(operator: Callable[..., None], device: torch.device) -> Callable[..., None]:
    """The operator on copies of its tensors there; whatever it wrote is copied back."""

    def run(*args: Any) -> None:
        there: dict[int, tuple[Tensor, Tensor]] = {}  # by the tensor's id: one that is given twice stays one
        operator(*(moved(arg, device, there) for arg in args))
        for here, copy in there.values():
            here.copy_(copy)

    return run


class Elsewhere:
    """A kernel's module whose operators run on a device."""

    def __init__(self, module: ModuleType, device: torch.device) -> None:
        self._module, self._device = module, device

    def __getattr__(self, name: str) -> Any:
        return elsewhere(getattr(self._module, name), self._device)


def moved(value: Any, device: torch.device, there: dict[int, tuple[Tensor, Tensor]]) -> Any:
    """A copy of a tensor, or of those in a tuple, on a device; `there` is given the pairs."""
    if isinstance(value, Tensor):
        if id(value) not in there:
            there[id(value)] = value, value.to(device, copy=True)
        return there[id(value)][1]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(item, device, there) for item in value))
    return value
