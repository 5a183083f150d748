"""How long the device takes: replays of a captured graph between events; on CPU tensors a clock around calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from lorad.bench.figures import spread
from lorad.picture import Spread
from scene import Scene

COLD_BYTES = 256 << 20
"""Well above the last cache: calls that rotate over so many bytes find none of theirs in it."""
REPEATS = 20
WARM_UPS = 3


def each_us(scene: Scene, calls: Sequence[Callable[[], None]]) -> Spread:
    """Microseconds of a call: all are captured in one graph, so what starting them takes on the host isn't in it."""
    if scene.dry:
        return spread([_clock(calls) * 1e6 / len(calls) for _ in range(2)])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # whose tensors the calls read
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            for call in calls:
                call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        found = []
        for repeat in range(WARM_UPS + REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            if repeat >= WARM_UPS:
                found.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return spread(found)


def copies(size: int, scene: Scene) -> int:
    """How many copies of so many bytes are cold when each is used by turns."""
    return 1 if scene.dry else max(1, min(256, -(-COLD_BYTES // size)))


def bandwidth(scene: Scene) -> float:
    """Bytes a second, read and written, of a copy within the device's memory."""
    size = 1 << 16 if scene.dry else 2 << 30
    source = torch.zeros(size, dtype=torch.uint8, device=scene.device)
    target = torch.empty_like(source)
    return 2 * size / (each_us(scene, [lambda: target.copy_(source)]).median * 1e-6)


def _clock(calls: Sequence[Callable[[], None]]) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - begin
