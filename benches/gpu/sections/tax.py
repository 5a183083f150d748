"""G1: what eight adapters cost an 8B-shaped base in bf16, 64 rows, beside its own rate without them."""

from __future__ import annotations

from typing import Any

from bench import GIB, decode_steps, engine_8b
from lorad import Engine
from lorad.bench.figures import spread
from lorad.bench.roofline import Reads
from report import Report
from scene import Scene
from timing import bandwidth

ROWS, ADAPTERS, RANK, PROMPT, STEPS, REPEATS = 64, 8, 16, 128, 48, 5
KEPT_LEAST = 0.95


def run(scene: Scene, report: Report) -> None:
    rows, prompt, steps, repeats = (2, 8, 2, 2) if scene.dry else (ROWS, PROMPT, STEPS, REPEATS)
    rate = bandwidth(scene)
    with engine_8b(scene, rank=RANK, adapters=ADAPTERS, pool_bytes=8 * GIB) as engine:
        base, adapted = [""] * rows, [f"a{row % ADAPTERS}" for row in range(rows)]
        for models in (base, adapted):  # kernels are compiled, adapters come to their pages
            decode_steps(scene, engine, models, 2, prompt=prompt)
        medians: dict[str, list[float]] = {"base": [], "adapters": []}
        for _ in range(repeats):  # by turns: what disturbs one disturbs the other
            for side, models in (("base", base), ("adapters", adapted)):
                medians[side].append(spread(decode_steps(scene, engine, models, steps, prompt=prompt)).median)
        for side, found in medians.items():
            step = spread(found)
            said = f"{rows / step.median:.0f} tok/s, {step.median * 1e3:.2f} ms a step"
            report.tells(f"{rows} rows, {side}", rows / step.median, said)
            reads = reads_of(engine, rows * (prompt + steps // 2), 0 if side == "base" else min(rows, ADAPTERS), RANK)
            share = reads.bytes / rate / step.median
            report.tells(
                f"{rows} rows, {side}: of what its bytes allow",
                share,
                f"{share:.0%} of {rate / 1e12:.2f} TB/s",
            )
        kept = spread([a / b for a, b in zip(medians["base"], medians["adapters"], strict=True)])
        said = f"{kept.median:.1%} ({kept.least:.1%} to {kept.most:.1%})"
        report.figure("G1: of the base's rate that adapters leave", kept.median, said, least=KEPT_LEAST)


def reads_of(engine: Engine, tokens: int, adapters: int, rank: int) -> Reads:
    """Bytes of a decode step whose rows have so many tokens in all, on so many adapters of one rank."""
    worker: Any = engine.worker
    config = worker.model.config
    embedding = worker.model.embed.nbytes  # of it a step reads the rows of its tokens alone
    ranks = sum(module.in_features + module.out_features for module in config.modules()) * config.layers
    kv = tokens * config.layers * 2 * config.kv_heads * config.head_dim * 2
    return Reads(worker.model.bytes - embedding, adapters * ranks * rank * 2, kv)
