"""An engine that is stepped by hand, on the tiny model with one adapter, `a`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lorad import Engine


def make(base: Path, adapter: Path, **options: Any) -> Engine:
    engine = Engine(str(base), **({"dtype": "float32", "kv_cache_memory_bytes": 4 << 20} | options))
    engine.load_adapter("a", str(adapter))
    return engine


def finish(engine: Engine) -> None:
    """Steps until nothing is left of any request."""
    while engine.step():
        assert engine.core.check() is None
    assert not engine.worker.sampler.prompt_scores
