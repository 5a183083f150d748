"""Random mixes without `--deterministic`, against transformers + PEFT in fp32 on the same weights, dequantised.

A mix is a batch of requests with their adapters, ragged prompts, chunks, shared beginnings, pages that run out. The
reference reads each request's prompt and answer in one pass (teacher-forced): up to the first difference these are its
own tokens, beyond it the comparison still holds. Where lorad took another token than the reference's best, the
reference itself must hardly prefer one to the other, by less than `Tolerance.worst`; the log-probability of each token
is within that too.

500 mixes of each number type by `LORAD_MIXES=500 make test-python ARGS="tests/test_random_mixes.py
--log-cli-level=info"`, which tells what was found; a few in the suite. The file runs once for each instruction level.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from lorad import Engine, Request, _core
from lorad.demo.tenant import tenants
from lorad.models.forms import has_tiles
from lorad.models.open import open_model
from lorad.models.operators import ROWS, Choice, Operators, candidates
from lorad.text.model import load_text_model
from make_adapter import make_adapter
from oracle import oracle
from tiny import WIDE, make_tiny, make_tiny_dequantised, make_tiny_gguf

log = logging.getLogger(__name__)

MIXES = int(os.environ.get("LORAD_MIXES", "4"))
TOKENS = 12
INT8 = "int8"
"""lorad's integer dot products."""
TILES = "tiles"
"""lorad's products of bf16, on CPUs that have tiles; adapters of bf16 go through tiles with them."""
RANKS = (1, 3, 8, 17, 64)


class Way(NamedTuple):
    """How a weight is multiplied."""

    kind: str
    """Its number type."""
    form: str
    """The operator of floats, INT8 or TILES."""

    @property
    def activations(self) -> str:
        """What the activations are rounded to."""
        return {"torch_bf16": "bf16", TILES: "bf16", INT8: "int8"}.get(self.form, "f32")

    @property
    def adapters(self) -> torch.dtype:
        """Number type of the adapters."""
        return torch.bfloat16 if self.form == TILES else torch.float32

    def choose(self, element: str) -> Choice:
        """The operators of a model's weights, some of which may be of another number type."""
        return Choice((self.form if self.form in candidates(element) else "own",) * len(ROWS))


QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
WAYS = [
    Way("f32", "own"),
    Way("f32", "torch_f32"),
    Way("f16", "own"),
    Way("f16", "torch_f32"),
    Way("bf16", "own"),
    Way("bf16", "torch_f32"),
    Way("bf16", "torch_bf16"),
    *(Way(kind, INT8) for kind in QUANTISED),
    *(Way(kind, TILES) for kind in QUANTISED if has_tiles()),
]


class Tolerance(NamedTuple):
    """In nats."""

    worst: float
    """Of one token's log-probability, and of the reference's preference where another token was taken."""
    mean: float
    """Of the log-probabilities of a mix."""


TOLERANCES = {"f32": Tolerance(0.05, 0.006), "bf16": Tolerance(0.6, 0.08), "int8": Tolerance(2.0, 0.2)}
"""By what activations are rounded to, with KV of 16 bits. These random models are far wilder than a trained one."""
TRAINED = Tolerance(0.6, 0.1)
"""The embedded base with its tenants: int8."""


class Base(NamedTuple):
    """A tiny model on the disk, as lorad takes it and as the reference does, and adapters for it."""

    path: Path
    reference: Path
    adapters: dict[str, Path]
    pool_bytes: int
    """So small that adapters and requests take turns."""


class Found(NamedTuple):
    """Of a mix or of many."""

    tokens: int = 0
    others: int = 0
    """Tokens that weren't the reference's best."""
    gap: float = 0.0
    """The largest that the reference has between its best token and the one taken."""
    worst: float = 0.0
    """The largest difference of log-probabilities."""
    off: float = 0.0
    """Sum of those differences."""

    @property
    def mean(self) -> float:
        """Of the differences."""
        return self.off / self.tokens

    def and_(self, more: Found) -> Found:
        """Both together."""
        worst = max(self.gap, more.gap), max(self.worst, more.worst)
        return Found(self.tokens + more.tokens, self.others + more.others, *worst, self.off + more.off)


Bases = Callable[[Way, int], Base]

SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
    ("mistral", {"sliding_window": 20, "num_hidden_layers": 2}),
    ("qwen2", {"intermediate_size": 160}),
    ("qwen3", {"head_dim": 32, "tie_word_embeddings": False}),
    ("gemma3", {"sliding_window": 24, "sliding_window_pattern": 2}),
]
GGUF_SHAPES = [shape for shape in SHAPES if shape[0] in ("llama", "qwen2", "qwen3")]
"""A GGUF file doesn't say the others' windows as these models have them."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """Makes and keeps a base: by what it's made of and index of its shape."""
    made: dict[tuple[str, torch.dtype, int], Base] = {}

    def make(way: Way, index: int) -> Base:
        key = way.kind, way.adapters, index
        if key not in made:
            made[key] = make_base(tmp_path_factory.mktemp("base"), way, index)
        return made[key]

    return make


def make_base(folder: Path, way: Way, index: int) -> Base:
    kind = way.kind
    shapes = GGUF_SHAPES if kind in QUANTISED else SHAPES
    family, changes = shapes[index % len(shapes)]
    if kind.endswith("_K"):
        changes = changes | {key: value for key, value in WIDE.items() if (family, key) != ("qwen2", "head_dim")}
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}.get(kind, torch.float32)
    path = reference = make_tiny(folder / "tiny", family, seed=index, dtype=dtype, **changes)
    if kind in QUANTISED:
        reference = make_tiny_dequantised(path, folder / "reference", kind)
        path = make_tiny_gguf(path, folder / "tiny.gguf", kind)
    config = open_model(path).config
    adapters = {
        f"r{rank}": make_adapter(folder / f"r{rank}", config, rank=rank, seed=rank, dtype=way.adapters)
        for rank in RANKS
    }
    return Base(path, reference, adapters, 8 << 20 if kind.endswith("_K") else 2 << 20)


Asked = list[tuple[str, list[int], Request]]
"""Adapter or nothing, prompt, answer."""


def mix(base: Base, way: Way, dice: random.Random) -> Asked:
    """Ten requests of a tiny model, answered."""
    stem = [dice.randrange(3, 250) for _ in range(40)]
    prompts = [
        stem[: dice.choice([0, 16, 33])] + [dice.randrange(3, 250) for _ in range(dice.choice([1, 7, 30]))]
        for _ in range(10)
    ]
    with pytest.MonkeyPatch.context() as patch:
        if way.form != INT8:
            patch.setattr(Operators, "choose", lambda self, element, rows, cols, fine=False: way.choose(element))
        return answered(base, dice, prompts)


def answered(base: Base, dice: random.Random, prompts: list[list[int]]) -> Asked:
    """Each prompt under an adapter drawn for it, on an engine with limits drawn for all."""
    engine = Engine(
        str(base.path),
        max_num_seqs=dice.choice([2, 5, 16]),
        max_num_batched_tokens=dice.choice([16, 40, 512]),
        block_size=dice.choice([4, 16]),
        kv_cache_memory_bytes=base.pool_bytes * dice.choice([1, 4]),
        enable_prefix_caching=dice.random() < 0.8,
        threads=dice.choice([1, 2]),
    )
    for name, path in base.adapters.items():
        engine.load_adapter(name, str(path))
    asked: Asked = []
    for prompt in prompts:
        model = dice.choice([*base.adapters, ""])
        request = engine.add(prompt, model, max_tokens=TOKENS, stop_token_ids=(), logprobs=0)
        asked.append((model, prompt, request))
        for _ in range(dice.randrange(3)):
            engine.step()
    while engine.step():
        assert engine.core.check() is None
    engine.close()
    _core.set_threads(1)  # the process's
    assert {request.finish for _, _, request in asked} == {"length"}
    return asked


def beside(base: Base, asked: Asked, adapter_of: Callable[[str], str] = lambda model: model) -> Found:
    """Answers beside the reference's view of them, under the adapter of the same name unless `adapter_of` says else."""
    found = Found()
    for model, prompt, request in asked:
        adapter = base.adapters.get(adapter_of(model))
        wanted = oracle(base.reference).logprobs([*prompt, *request.tokens[:-1]], adapter)[len(prompt) - 1 :]
        chosen = wanted[torch.arange(TOKENS), request.tokens]
        gaps = wanted.max(dim=-1).values - chosen
        off = (chosen - torch.tensor(request.logprobs)).abs()
        found = found.and_(Found(TOKENS, int((gaps > 0).sum()), float(gaps.max()), float(off.max()), float(off.sum())))
    return found


def check(found: Found, tolerance: Tolerance, *about: object) -> None:
    assert max(found.gap, found.worst) < tolerance.worst, (found, *about)
    assert found.mean < tolerance.mean, (found, *about)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.kind} {way.form}")
def test_every_way_of_multiplying_agrees_with_the_reference(bases: Bases, way: Way) -> None:
    base = bases(way, WAYS.index(way))
    asked = mix(base, way, random.Random(0))
    check(beside(base, asked), TOLERANCES[way.activations])
    # What a tolerance is worth: the same answers under the adapters of others are far beyond it.
    names = [*base.adapters, ""]
    wrong = beside(base, asked, lambda model: names[names.index(model) - 1])
    assert wrong.mean > 10 * TOLERANCES[way.activations].mean


@pytest.mark.parametrize("activations", TOLERANCES)
def test_random_mixes_agree_with_the_reference(bases: Bases, activations: str) -> None:
    ways, found = [way for way in WAYS if way.activations == activations], Found()
    for seed in range(MIXES):
        dice = random.Random(seed)
        way = dice.choice(ways)
        base = bases(way, dice.randrange(len(SHAPES)))
        one = beside(base, mix(base, way, dice))
        check(one, TOLERANCES[activations], seed, way)
        found = found.and_(one)
    assert found.tokens == 10 * TOKENS * MIXES
    log.info("%s: %s, mean %.4f", activations, found, found.mean)


@pytest.mark.slow
def test_real_mixes_agree_with_the_reference(smollm2_gguf: Path) -> None:
    """The embedded base as it's served, its tenants, questions from their held-out sets."""
    adapters = {tenant.name: tenant.path for tenant in tenants()}
    base = Base(smollm2_gguf, smollm2_gguf, adapters, 64 << 20)
    text = load_text_model(smollm2_gguf)
    questions = [
        json.loads(line)["prompt"]
        for path in adapters.values()
        for line in (path / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    found = Found()
    for seed in range(-(-MIXES // 10)):
        dice = random.Random(seed)
        prompts = [text.chat([{"role": "user", "content": dice.choice(questions)}]) for _ in range(10)]
        one = beside(base, answered(base, dice, prompts))
        check(one, TRAINED, seed)
        found = found.and_(one)
    log.info("the real base: %s, mean %.4f", found, found.mean)


@pytest.mark.skipif("LORAD_CPU" in os.environ, reason="this is the run for another level")
@pytest.mark.parametrize("level", _core.cpu_levels())
def test_every_level_passes(level: str) -> None:
    """This file's tests of tiny models under another instruction level, which a process chooses once."""
    if level == _core.cpu_features()["level"]:
        pytest.skip("this run's own")
    environment = {**os.environ, "LORAD_CPU": level, "LORAD_MIXES": str(min(MIXES, 4))}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "not real", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_level_is_the_one_asked_for() -> None:
    level = _core.cpu_features()["level"]
    assert level == os.environ.get("LORAD_CPU", level)
