"""What the sections with an 8B-shaped base share: the engine, random adapters for it, decode steps that are timed."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from lorad import Engine, Request
from lorad.bench.adapters import copy_changed, write_random
from scene import Scene
from synthetic import LLAMA_3_8B, TINY, SyntheticWeights

GIB = 1 << 30


@contextmanager
def engine_8b(
    scene: Scene,
    *,
    rank: int,
    adapters: int,
    pool_bytes: int,
    dry_pool_bytes: int = 1 << 19,
    four_bit: bool = False,
    **options: Any,
) -> Iterator[Engine]:
    """An engine with adapters `a0`, `a1`, … of one rank on all linear modules. A dry run has a tiny base. `four_bit`:
    the base's layers are quantised."""
    base = TINY if scene.dry else LLAMA_3_8B
    sizes = {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "max_model_len": 1024,
        "kv_cache_memory_bytes": pool_bytes,
    }
    if scene.dry:
        sizes |= {
            "max_num_seqs": 3,
            "max_num_batched_tokens": 64,
            "max_model_len": 64,
            "kv_cache_memory_bytes": dry_pool_bytes,
        }
    weights = SyntheticWeights(base, scene.device, four_bit=four_bit)
    engine = scene.engine(weights, enable_prefix_caching=False, **sizes, **options)
    with TemporaryDirectory() as folder:
        for number in range(adapters):
            path = Path(folder) / f"a{number}"
            if number == 0:
                first = write_random(path, base, rank, 0)
            engine.load_adapter(path.name, str(path if number == 0 else copy_changed(first, path, number)))
        yield engine
    engine.close()
    del engine
    gc.collect()  # the next one has the device's memory to itself


def ask(engine: Engine, models: Sequence[str], tokens: int, *, prompt: int, seed: int = 0) -> list[Request]:
    """One request for each model, "" the base, of so many random prompt tokens."""
    dice, vocab = Random(seed), engine.weights.config.vocab
    return [
        engine.add([dice.randrange(vocab) for _ in range(prompt)], model, max_tokens=tokens, stop_token_ids=())
        for model in models
    ]


def decode_steps(scene: Scene, engine: Engine, models: Sequence[str], steps: int, *, prompt: int) -> list[float]:
    """Seconds of decode steps in which there is a row for each model; those before all prompts ended aren't told."""
    asked = ask(engine, models, steps + 2 + len(models), prompt=prompt)
    while not all(request.tokens for request in asked):
        assert engine.step() is not None
    found, before = [], scene.now()
    for _ in range(steps):
        assert engine.step() is not None
        found.append(-before + (before := scene.now()))
    for request in asked:
        assert request.finish is None, f"a request ended by {request.finish} before its steps were timed"
        engine.abort(request.id)
    while engine.step() is not None or engine.has_work():
        pass
    return found
