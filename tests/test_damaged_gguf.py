"""Damaged GGUF files: each is refused by a `LoradError` or served; no other exception, no memory for what isn't there.

1,000 seeds by `LORAD_DAMAGES=1000 make test-python ARGS="tests/test_damaged_gguf.py --log-cli-level=info"`, which tells
what was said to them; a few hundred in the suite.
"""

from __future__ import annotations

import logging
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from damage import Damaged
from lorad import Engine
from lorad.errors import LoradError
from lorad.models.open import open_model
from lorad.text.model import load_text_model
from tiny import VOCAB, WIDE, make_tiny, make_tiny_gguf, token_texts

log = logging.getLogger(__name__)

SEEDS = int(os.environ.get("LORAD_DAMAGES", "250"))
KINDS = {
    "F32": "llama",
    "F16": "qwen2",
    "BF16": "qwen3",
    "Q8_0": "gemma3",
    "Q4_0": "llama",
    "Q4_1": "qwen2",
    "Q5_0": "qwen3",
    "Q5_1": "gemma3",
    "Q4_K": "llama",
    "Q5_K": "qwen2",
    "Q6_K": "qwen3",
}
"""Every number type, each with one of the families."""
CODES = {
    "gguf_form",
    "model_architecture",
    "model_config",
    "model_feature",
    "model_shape",
    "model_tensor_missing",
    "model_tensor_unknown",
    "model_tensor_type",
    "tokenizer_model",
    "tokenizer_pre",
    "tokenizer_vocab",
    "tokenizer_decoder",
    "chat_template",
    "option_range",
    "sequence_too_long",
}
"""The last two: a context of no more than a token or two."""
MESSAGE_LENGTH_MAX = 600
PEAK_BYTES = 32 << 20
"""Of Python and numpy, for files of half a megabyte at most."""


@pytest.fixture(scope="module", params=KINDS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Damaged]:
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    shape = {**(WIDE if kind.endswith("_K") else {}), "num_hidden_layers": 2}
    if KINDS[kind] == "qwen2":
        shape.pop("head_dim", None)
    base = make_tiny(folder / "base", KINDS[kind], **shape)
    tokens = [*token_texts(VOCAB)[:-1], "Ġt"]  # what the merge makes
    sound = make_tiny_gguf(base, folder / "sound.gguf", kind, keys={"tokenizer.ggml.tokens": tokens})
    assert outcome(lambda: run(sound)) == outcome(lambda: load_text_model(sound)) == "served"
    return kind, Damaged(sound, folder / "damaged.gguf")


def outcome(serve: Callable[[], object]) -> str:
    """The code of the refusal, or `served`."""
    try:
        serve()
    except LoradError as refusal:
        assert refusal.code in CODES
        assert 10 < len(refusal.message) < MESSAGE_LENGTH_MAX
        return refusal.code
    return "served"


def run(path: Path) -> None:
    """Loads all weights and computes two tokens."""
    engine = Engine(str(path), kv_cache_memory_bytes=1 << 20, max_num_seqs=2)
    try:
        request = engine.add([5, 6, 7], max_tokens=2, stop_token_ids=())
        while engine.step():
            pass
    finally:
        engine.close()
    assert request.finish in ("length", "error")  # zeros, or a damaged epsilon, may give no number


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Gives the most bytes that were held at once within."""
    tracemalloc.start()
    most = 0
    try:
        yield lambda: most
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def damage(damaged: Damaged, rng: np.random.Generator) -> Counter[str]:
    """What the engine's process and the front's say to one damage."""
    if cut := rng.random() < 0.2:
        damaged.cut(rng)
    else:
        damaged.change(rng)
    model, text = outcome(lambda: open_model(damaged.path)), outcome(lambda: load_text_model(damaged.path))
    assert not cut or model == text == "gguf_form"
    return Counter([outcome(lambda: run(damaged.path)) if model == "served" else model, text])


def test_damaged_files_are_refused_or_served(tiny: tuple[str, Damaged]) -> None:
    kind, damaged = tiny
    found: Counter[str] = Counter()
    for seed in range(-(-SEEDS // len(KINDS))):
        with traced() as peak:
            found += damage(damaged, np.random.default_rng([seed, *kind.encode()]))
        assert peak() < PEAK_BYTES, seed
    # Few damages leave a file that is served; none is one that must be.
    damaged.whole()
    found += Counter([outcome(lambda: run(damaged.path)), outcome(lambda: load_text_model(damaged.path))])
    assert found["gguf_form"] and found["served"] >= 2, found
    log.info("%s: %s", kind, dict(found))


def test_the_real_files_header_damaged(smollm2_gguf: Path, tmp_path: Path) -> None:
    """The directory of 272 tensors and the whole vocabulary; the weights are zeros."""
    damaged, found = Damaged(smollm2_gguf, tmp_path / "damaged.gguf"), Counter[str]()
    for seed in range(SEEDS // 10):
        found += damage(damaged, np.random.default_rng(seed))
    assert found["gguf_form"] and found["served"], found
    log.info("%s", dict(found))
