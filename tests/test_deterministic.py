"""Deterministic mode: a request's tokens and log-probabilities are the same bits alone and in any company.

Company means: other rows, prompts cut into chunks, beginnings found in the cache, pages given up and computed again,
another number of threads. 500 mixes by `LORAD_MIXES=500 make test-python ARGS=tests/test_deterministic.py`; a few in
the suite.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from lorad import Engine, Request, _core
from lorad.models.open import open_model
from make_adapter import make_adapter
from tiny import make_tiny, make_tiny_gguf

MIXES = int(os.environ.get("LORAD_MIXES", "12"))
TOKENS = 12
RANKS = (1, 3, 8, 17, 64)


@pytest.fixture(scope="module", params=["bf16", "f32", "Q4_1"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    dtype = torch.bfloat16 if request.param == "bf16" else torch.float32
    tiny = make_tiny(folder / "tiny", dtype=dtype)
    return make_tiny_gguf(tiny, folder / "tiny.gguf", "Q4_1") if request.param == "Q4_1" else tiny


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, config = tmp_path_factory.mktemp("adapters"), open_model(base).config
    return {f"r{rank}": make_adapter(folder / f"r{rank}", config, rank=rank, seed=rank) for rank in RANKS}


def make(base: Path, adapters: dict[str, Path], **options: object) -> Engine:
    engine = Engine(str(base), **{"deterministic": True, "kv_cache_memory_bytes": 4 << 20, **options})
    for name, path in adapters.items():
        engine.load_adapter(name, str(path))
    return engine


def add(engine: Engine, model: str, prompt: list[int]) -> Request:
    return engine.add(prompt, model, max_tokens=TOKENS, stop_token_ids=(), logprobs=3)


def test_random_mixes_give_the_bits_of_each_alone(base: Path, adapters: dict[str, Path]) -> None:
    alone = make(base, adapters, max_num_seqs=1, enable_prefix_caching=False, threads=1)
    compared = 0
    for seed in range(MIXES):
        dice = random.Random(seed)
        engine = make(
            base,
            adapters,
            max_num_seqs=dice.choice([2, 5, 16]),
            max_num_batched_tokens=dice.choice([16, 40, 512]),
            kv_cache_memory_bytes=dice.choice([1 << 20, 4 << 20]),
            threads=dice.choice([1, 2, 3]),
        )
        stem = [dice.randrange(3, 250) for _ in range(40)]
        asked = []
        for _ in range(10):
            model = dice.choice([*adapters, ""])
            prompt = stem[: dice.choice([0, 16, 33])] + [dice.randrange(3, 250) for _ in range(dice.choice([1, 7, 30]))]
            asked.append((model, prompt, add(engine, model, prompt)))
            for _ in range(dice.randrange(3)):
                engine.step()
        while engine.step():
            pass
        engine.close()
        _core.set_threads(1)  # the process's: the last engine's before
        for model, prompt, request in asked:
            by_itself = add(alone, model, prompt)
            while alone.step():
                pass
            assert request.finish == by_itself.finish == "length"
            assert request.tokens == by_itself.tokens, (seed, model, len(prompt))
            assert request.logprobs == by_itself.logprobs, (seed, model, len(prompt))
            compared += 1
    assert compared == 10 * MIXES
    alone.close()
