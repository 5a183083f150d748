"""C8: 1,000 registered adapters by Zipf's law in a pool that holds 64, against the same load on one adapter; and the
one pool against a fixed split of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from lorad.bench.figures import Figures, figures
from lorad.bench.lengths import Uniform
from lorad.bench.run import run
from lorad.bench.traffic import Traffic, asks
from lorad.engine.engine import Engine
from lorad.worker.worker import Worker

ROWS = 32
PROMPT, OUTPUT = 128, 64
SATURATED = 256
"""Requests at once, for tok/s."""
SHARE = 0.6
"""Of the throughput on one adapter: the rate of arrivals for times to the first token."""


def pool_pages(adapter_pages: int, hot: int, page_tokens: int) -> int:
    """For so many adapters, and the KV of all rows."""
    return hot * adapter_pages + ROWS * -(-(PROMPT + OUTPUT) // page_tokens)


def measure_zipf(
    model: Path, adapters: list[Path], hot: int, repeats: int, say: Callable[[str], None]
) -> dict[str, list[Figures]]:
    """Figures of each repeat by side: `one`, `many`, saturated and `open` (with arrivals); `split` saturated."""
    probe = Engine(str(model), threads=0)
    with closing(probe):
        probe.load_adapter("x", str(adapters[0]))
        pages = probe.adapters.names["x"].pages
        page_bytes = probe.worker.geometry.page_bytes
    pool = pool_pages(pages, hot, 16) * page_bytes
    found: dict[str, list[Figures]] = {}
    core_config = Worker.core_config

    def split_config(worker: Worker) -> dict[str, Any]:
        """Half of the pool for adapters, half for KV, as engines with fixed slots have it."""
        return core_config(worker) | {"adapter_pages": worker.limits.pages // 2}

    with ExitStack() as stack:
        engines = {}
        for kind, config in (("unified", core_config), ("split", split_config)):
            with patch.object(Worker, "core_config", config):
                engine = Engine(str(model), kv_cache_memory_bytes=pool, max_num_seqs=ROWS, enable_prefix_caching=False)
            engines[kind] = stack.enter_context(closing(engine))
            say(f"registering {len(adapters)} adapters, {kind}")
            for number, path in enumerate(adapters):
                engine.load_adapter(f"a{number}", str(path))
        for repeat in range(repeats + 1):
            for side in ("one", "many", "split"):
                _run(engines["split" if side == "split" else "unified"], found, side, 0, len(adapters), repeat)
                say(f"  {side}: {found[side][-1]['output_tok_s']:.0f} tok/s" if repeat else f"  {side}: warm")
        rate = SHARE * median(one["output_tok_s"] for one in found["one"]) / OUTPUT
        for repeat in range(repeats + 1):
            for side in ("one", "many"):
                _run(engines["unified"], found, f"{side} open", rate, len(adapters), repeat)
                if repeat:
                    last = found[f"{side} open"][-1]
                    say(f"  {side}, {rate:.1f}/s: TTFT {last['ttft_p50_s']:.3f}, p99 {last['ttft_p99_s']:.3f} s")
    return found


def _run(engine: Engine, found: dict[str, list[Figures]], side: str, rate: float, adapters: int, repeat: int) -> None:
    lengths = Uniform(PROMPT, PROMPT), Uniform(OUTPUT, OUTPUT)
    traffic = Traffic(SATURATED, rate, *lengths, zipf=1.0, seed=repeat)
    one = side.startswith("one")
    made = run(engine, asks(traffic, adapters, engine.weights.config.vocab), lambda k: "a0" if one else f"a{k}")
    if repeat:  # the first one warms
        found.setdefault(side, []).append(figures(made))
