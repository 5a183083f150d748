"""G2: a step of 32 rows on 32 adapters over an 8B-shaped base of four bits, beside what its bytes take."""

from __future__ import annotations

from bench import GIB, decode_steps, engine_8b
from lorad.bench.figures import spread
from report import Report
from scene import Scene
from sections.tax import reads_of
from timing import bandwidth

ROWS, RANK, PROMPT, STEPS, REPEATS = 32, 16, 896, 32, 5
MOST = 1.35


def run(scene: Scene, report: Report) -> None:
    rows, prompt, steps, repeats = (2, 8, 2, 2) if scene.dry else (ROWS, PROMPT, STEPS, REPEATS)
    rate = bandwidth(scene)
    with engine_8b(scene, rank=RANK, adapters=rows, pool_bytes=12 * GIB, four_bit=True) as engine:
        models = [f"a{row}" for row in range(rows)]
        decode_steps(scene, engine, models, 2, prompt=prompt)  # kernels are compiled, adapters come to their pages
        found = [spread(decode_steps(scene, engine, models, steps, prompt=prompt)).median for _ in range(repeats)]
        floor = reads_of(engine, rows * (prompt + steps // 2), rows, RANK).bytes / rate
        times = spread([seconds / floor for seconds in found])
        said = f"{times.median:.2f} ({times.least:.2f} to {times.most:.2f}) × {floor * 1e3:.2f} ms"
        report.figure("G2: step over a base of four bits, of what its bytes take", times.median, said, most=MOST)
