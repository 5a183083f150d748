"""Adapters with numbers of any size, in each number type and kind of tensor: refused by name, or served.

Whatever becomes of their own rows, other rows' bits don't change. 2,000 adapters by
`LORAD_MIXES=2000 make test-python ARGS=tests/test_adapter_numbers.py`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from lorad import Engine, Request
from lorad.engine.engine import FAILURES
from lorad.errors import AdapterRejected
from lorad.models.config import ModelConfig
from make_adapter import edit_tensors, make_adapter
from tiny import make_tiny

log = logging.getLogger(__name__)

MIXES = int(os.environ.get("LORAD_MIXES", "12"))
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dora": {"use_dora": True},
    "bias": {"lora_bias": True},
    "whole": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "rows": {"trainable_token_indices": [5, 9]},
}
SIZES = (0.0, 1e-45, 1e-38, 1e-8, 1.0, 1e4, 6e4, 1e9, 1e14, 1e19, 1e29, 3e38)
ALPHAS = (1e-38, 1e-3, 16, 16, 1e9, 1e29, 3e38)
PROMPT = [17, 5, 9, 120, 33]


def strange(random: Random, path: Path, config: ModelConfig, form: str) -> Path:
    """An adapter of which some tensors have values of other sizes, all finite."""
    dtype = random.choice((torch.float32, torch.float16, torch.bfloat16))
    made = make_adapter(path, config, rank=4, dtype=dtype, alpha=random.choice(ALPHAS), **FORMS[form])
    parts = ["lora_A.weight", "lora_B.weight", "magnitude", ".bias", "embed_tokens", "lm_head"]
    chosen = random.sample(parts, random.randint(1, 3))
    sizes = {part: random.choice(SIZES) for part in parts}

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for key, tensor in tensors.items():
            for part in chosen:
                if part in key and random.random() < 0.7:
                    size = min(sizes[part], torch.finfo(tensor.dtype).max)
                    some = slice(None) if random.random() < 0.5 else slice(0, 1)
                    tensor[some] = tensor[some].sign() * size

    return edit_tensors(made, change)


def finish(engine: Engine, *asked: tuple[str, list[int]]) -> list[Request]:
    requests = [engine.add(prompt, model, max_tokens=6, stop_token_ids=(), logprobs=0) for model, prompt in asked]
    while engine.step():
        assert engine.core.check() is None
    return requests


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_any_size_harm_nobody_else(form: str, dtype: str, tmp_path: Path) -> None:
    engine = Engine(
        str(make_tiny(tmp_path / "base", tie_word_embeddings=form == "rows")),
        dtype=dtype,
        deterministic=True,
        kv_cache_memory_bytes=16 << 20,
        max_num_seqs=4,
    )
    config = engine.weights.config
    engine.load_adapter("good", str(make_adapter(tmp_path / "good", config)))
    others = [("", PROMPT), ("good", PROMPT)]
    wanted = [(one.tokens, one.logprobs) for one in finish(engine, *others)]
    served = refused = failed = 0
    for seed in range(MIXES):
        path = strange(Random(f"{form} {dtype} {seed}"), tmp_path / str(seed), config, form)
        try:
            engine.load_adapter("strange", str(path))
        except AdapterRejected as refusal:
            assert refusal.code in ("adapter_not_finite", "adapter_no_effect"), (seed, refusal.message)
            refused += 1
            continue
        served += 1
        for _ in range(2):  # the second time with what the first one left in the cache
            *same, own = finish(engine, *others, ("strange", PROMPT))
            assert [(one.tokens, one.logprobs) for one in same] == wanted, seed
            assert own.finish == "length" or own.error == FAILURES["failed_row"], (seed, own, own.error)
        failed += own.finish != "length"
        engine.unload_adapter("strange")
    engine.close()
    log.info("%s, %s: %d served, of which %d fail; %d refused", form, dtype, served, failed, refused)
    assert served and refused
