"""What a graph is captured by: the small interface that `Graphs` needs, and CUDA's side of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]
"""Does again what was captured, on the same tensors."""

WARM_UPS = 2
"""Kernels are compiled, and libraries take their workspaces, before anything is captured."""


class Capture(Protocol):
    """Captures what `run` starts. It must start the same whatever is in its tensors, and read none of them."""

    def __call__(self, run: Callable[[], None]) -> Replay: ...

    @property
    def bytes(self) -> int:
        """Device memory that all captures took."""


class CudaCapture:
    """CUDA graphs that share one memory pool: they never run beside one another."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """`stream`: the worker's, on which replays run too."""
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()
        self.bytes = 0

    def __call__(self, run: Callable[[], None]) -> Replay:
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                run()
            self._stream.synchronize()
            before = torch.cuda.memory_reserved()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                run()
            self.bytes += torch.cuda.memory_reserved() - before
        replay: Replay = graph.replay
        return replay
