"""An engine's greedy answers, to hold beside the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lorad import Engine

TOKENS = 16

Asked = Sequence[tuple[str, list[int]]]
"""Adapter's name, or "", and prompt."""
Answers = list[tuple[list[int], list[float]]]
"""Tokens and their log-probabilities."""


def answers(base: Path, adapters: dict[str, Path], asked: Asked, **options: Any) -> Answers:
    """`TOKENS` for each, all in one engine; `options` are its own, for other numbers than the files' in f32."""
    plain = {"dtype": "float32", "dequantize": True, "kv_cache_memory_bytes": 8 << 20, "max_num_seqs": 16}
    engine = Engine(str(base), **(plain | options))
    for name, path in adapters.items():
        engine.load_adapter(name, str(path))
    requests = [engine.add(prompt, model, max_tokens=TOKENS, stop_token_ids=(), logprobs=0) for model, prompt in asked]
    while engine.step():
        assert engine.core.check() is None
    engine.close()
    assert {request.finish for request in requests} == {"length"}
    return [(request.tokens, request.logprobs) for request in requests]
