"""G5: an adapter that isn't in pages, its image in pinned memory: what that adds to its first token, and to the
others' time between tokens."""

from __future__ import annotations

from bench import GIB, ask, engine_8b
from lorad import Engine
from lorad.bench.figures import spread
from report import Report
from scene import Scene

ROWS, PROMPT, RANK, TURNS, ALONE = 16, 512, 16, 12, 40
TTFT_MS_MOST, ITL_MOST = 2.0, 1.05
ADAPTERS = 8
"""Asked in turn; the pool has room for fewer beside the rows, so each is evicted before its turn comes again."""
POOL_BYTES = GIB * 3 // 2
"""Rows of up to 650 tokens of 128 KiB take 1.3 GiB, an adapter 80 MiB."""


def run(scene: Scene, report: Report) -> None:
    rows, prompt, turns, alone = (2, 8, 4, 2) if scene.dry else (ROWS, PROMPT, TURNS, ALONE)
    sizes = {"pool_bytes": POOL_BYTES, "dry_pool_bytes": 1 << 18}
    with engine_8b(scene, rank=RANK, adapters=ADAPTERS, **sizes) as engine:
        for number in (0, *range(ADAPTERS)):  # kernels are compiled, every image comes to pinned memory
            _first_token(scene, engine, f"a{number}", [])
        ask(engine, [""] * rows, 50 if scene.dry else 400, prompt=prompt)
        for _ in range(2 + rows * prompt // 1024):
            engine.step()
        undisturbed = [_step(scene, engine) for _ in range(alone)]
        added, beside_cold, beside_warm = [], list[float](), list[float]()
        for turn in range(turns):
            name, before = f"a{turn % ADAPTERS}", engine.stats().page_ins
            cold = _first_token(scene, engine, name, beside_cold)
            was_cold = engine.stats().page_ins > before
            warm = _first_token(scene, engine, name, beside_warm)
            if was_cold:
                added.append((cold - warm) * 1e3)
    report.must("adapters were cold when they were asked for", len(added) * 2 > turns, f"{len(added)} of {turns}")
    extra = spread(added)
    said = f"{extra.median:.2f} ms ({extra.least:.2f} to {extra.most:.2f})"
    report.figure("G5: a cold adapter adds to its first token, ms", extra.median, said, most=TTFT_MS_MOST)
    slower = _mean(beside_cold) / _mean(beside_warm)
    said = f"{slower:.3f} × of beside a warm one; {spread(undisturbed).median * 1e3:.2f} ms with no other request"
    report.figure("G5: the others' time between tokens", slower, said, most=ITL_MOST)


def _first_token(scene: Scene, engine: Engine, name: str, beside: list[float]) -> float:
    """Seconds to it; what the steps took until then goes to `beside`."""
    begin = scene.now()
    request = engine.add([1, 2, 3], name, max_tokens=1, stop_token_ids=())
    while not request.tokens:
        beside.append(_step(scene, engine))
    return scene.now() - begin


def _step(scene: Scene, engine: Engine) -> float:
    """Seconds that it took."""
    begin = scene.now()
    engine.step()
    return scene.now() - begin


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
