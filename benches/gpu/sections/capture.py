"""G4: what capturing an 8B-shaped model's graphs for 64 adapters takes, and preparing a replay on the host."""

from __future__ import annotations

import time
from typing import Any

from bench import GIB, decode_steps, engine_8b
from lorad.bench.figures import spread
from report import Report
from scene import Scene

ADAPTERS = 64
SECONDS_MOST, GIB_MOST, HOST_US_MOST = 5.0, 0.5, 30.0


def run(scene: Scene, report: Report) -> None:
    count = 2 if scene.dry else ADAPTERS
    seconds = _first(scene)
    report.tells("capturing all graphs, as the first engine of a process", seconds, f"{seconds:.2f} s")
    with engine_8b(scene, rank=1, adapters=count, pool_bytes=8 * GIB) as engine:
        graphs = _all(engine.worker)
        said = f"{graphs.seconds:.2f} s for {graphs.captures} graphs"
        report.figure("G4: capturing all graphs, kernels compiled, s", graphs.seconds, said, most=SECONDS_MOST)
        said = f"{graphs.bytes / 2**20:.0f} MiB"
        report.figure("G4: device memory of all graphs, GiB", graphs.bytes / GIB, said, most=GIB_MOST)
        before, prepared = graphs.captures, _watch(engine.worker)
        decode_steps(scene, engine, [f"a{number}" for number in range(count)], 4 if scene.dry else 50, prompt=16)
        report.must("no graph was captured again", graphs.captures == before)
        if settled := prepared[len(prepared) // 4 :]:
            host = spread([seconds * 1e6 for seconds in settled])
            said = f"{host.median:.0f} µs ({host.least:.0f} to {host.most:.0f}), {count} rows of as many adapters"
            report.figure("G4: preparing a replay on the host, µs", host.median, said, most=HOST_US_MOST)
        else:
            report.must("decode steps were replays of graphs", False)


def _first(scene: Scene) -> float:
    """Seconds that it takes where kernels may have to be compiled, or are read from Triton's cache."""
    with engine_8b(scene, rank=1, adapters=0, pool_bytes=8 * GIB) as engine:
        return float(_all(engine.worker).seconds)


def _all(worker: Any) -> Any:
    """The worker's graphs, all captured."""
    while worker.graphs.pending:
        worker.graphs.capture(60)
    return worker.graphs


def _watch(worker: Any) -> list[float]:
    """Where seconds from the begin of a step's preparation to its replay will be."""
    found: list[float] = []
    began = [0.0]
    fill, replay = worker.buffers.fill, worker.graphs.replay

    def watched_fill(plan: Any) -> None:
        began[0] = time.perf_counter()
        fill(plan)

    def watched_replay(key: Any) -> None:
        found.append(time.perf_counter() - began[0])
        replay(key)

    worker.buffers.fill, worker.graphs.replay = watched_fill, watched_replay
    return found
