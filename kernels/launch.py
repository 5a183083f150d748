"""How kernels are started, so that others can see or do it instead: a capture double, a compiler, a profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Launcher = Callable[[Any, tuple[int, ...] | None, tuple[Any, ...], Mapping[str, Any]], None]
"""(kernel, grid, arguments, named arguments). No grid: the kernel is a plain function, a definition in its place."""


def run(kernel: Any, grid: tuple[int, ...] | None, args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
    """Starts it at once."""
    if grid is None:
        kernel(*args, **meta)
    elif all(grid):  # nothing to do otherwise, and CUDA refuses it
        kernel[grid](*args, **meta)


_launchers: list[Launcher] = [run]
"""The last one is asked."""


def launch(kernel: Any, grid: tuple[int, ...] | None, *args: Any, **meta: Any) -> None:
    """Every kernel of this package is started by this. Arguments are tensors and numbers as they are at this moment:
    what a graph would keep of them."""
    _launchers[-1](kernel, grid, args, meta)


@contextmanager
def launching(launcher: Launcher) -> Iterator[None]:
    """Within it `launcher` gets what is started. For one thread: the worker's."""
    _launchers.append(launcher)
    try:
        yield
    finally:
        _launchers.pop()
