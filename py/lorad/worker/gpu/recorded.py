"""`RecordedCapture`: stands in for CUDA graphs on a machine without a GPU.

It records every torch operator and every kernel that a run starts, with its arguments as they were, and does these
again on the same tensors. What a graph would bake in is baked in here too: numbers, addresses, grids, which kernels are
started. What a graph may not do is refused: reading a tensor on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from lorad.kernels.launch import launching, run
from lorad.worker.gpu.capture import Replay

SYNCHRONISES = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
}
"""Operators whose result's value or shape the host waits for."""


class RecordedCapture:
    """A capture on CPU tensors."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, work: Callable[[], None]) -> Replay:
        calls = _Calls()
        with launching(calls.kernel), calls:
            work()
        self.bytes += calls.bytes
        return calls.replay


def _has_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What one run started, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[Callable[[], None]] = []
        self.bytes = 0
        """Of tensors that the run made and a graph would keep."""

    def replay(self) -> None:
        for call in self._calls:
            call()

    def kernel(self, kernel: Any, grid: tuple[int, ...] | None, args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        kept = dict(meta)
        self._calls.append(lambda: run(kernel, grid, args, kept))
        with _disable_current_modes():  # what it does is its own affair: on a GPU it's one kernel
            run(kernel, grid, args, kept)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in SYNCHRONISES or (func is torch.ops.aten.index.Tensor and _has_mask(args[1])):
            raise RuntimeError(f"{func} waits for the device: it can't be captured")
        out = func(*args, **kwargs)
        if not func.is_view:
            self._calls.append(self._again(func, args, kwargs, out))
        return out

    def _again(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> Callable[[], None]:
        given = {id(value) for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)}
        outs = [value for value in (out if isinstance(out, tuple | list) else [out]) if isinstance(value, torch.Tensor)]
        made = [value for value in outs if id(value) not in given]
        self.bytes += sum(value.nbytes for value in made)

        def again() -> None:
            result = func(*args, **kwargs)
            results = result if isinstance(result, tuple | list) else [result]
            for value, new in zip(outs, results, strict=True):
                if id(value) not in given:  # in place otherwise
                    value.copy_(new)

        return again
