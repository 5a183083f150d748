"""The promise that everything else rests on: a mixed batch computes what transformers + PEFT compute, in fp32.

Real base, real adapters, and random adapters over ranks and module subsets; prompts of 1 to 600 tokens; chunked and
not; alone and in company; by the CPU worker and by the GPU's, on CPU tensors, with definitions in the kernels' place
and graphs recorded. The reference is teacher-forced: it reads prompt and answer in one pass, and at each place
its best token must be the engine's. By induction that is the same greedy answer.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from gpu_engine import gpu_engine
from lorad import Engine, Request
from lorad.demo.tenant import tenants
from lorad.models.config import MODULES
from lorad.models.open import open_model
from lorad.worker.gpu.worker import GpuWorker
from make_adapter import make_adapter
from oracle import Oracle
from oracle import oracle as oracle_of

TOKENS, GPU_TOKENS = 64, 20
"""Of an answer; fewer where definitions compute, which widen all weights."""
LOGPROB_TOLERANCE = 1e-3
RANKS = (1, 2, 8, 16, 64, 256)
PROMPT_LENGTHS = (1, 2, 15, 16, 17, 31, 33, 64, 100, 127, 200, 255, 256, 310, 450, 600)


class Case(NamedTuple):
    """One request of the batch."""

    model: str
    prompt: list[int]


@pytest.fixture(scope="module")
def oracle(smollm2_gguf: Path) -> Oracle:
    return oracle_of(smollm2_gguf)


@pytest.fixture(scope="module")
def adapters(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All real tenants, and for each rank a random adapter on a random subset of modules and layers."""
    folder, config, dice = tmp_path_factory.mktemp("adapters"), open_model(smollm2_gguf).config, random.Random(3)
    found = {tenant.name: tenant.path for tenant in tenants()}
    for rank in RANKS:
        found[f"r{rank}"] = make_adapter(
            folder / f"r{rank}",
            config,
            rank=rank,
            modules=sorted(dice.sample(MODULES, dice.randint(1, len(MODULES))), key=MODULES.index),
            layers=sorted(dice.sample(range(config.layers), dice.randint(5, config.layers))),
            seed=rank,
            dtype=dice.choice([torch.float32, torch.float16, torch.bfloat16]),
        )
    return found


@pytest.fixture(scope="module")
def cases(oracle: Oracle, adapters: dict[str, Path]) -> list[Case]:
    """Sixteen requests: every adapter and the base at least once, every length once."""
    dice = random.Random(7)
    models = [*adapters, ""]
    models += [dice.choice(models) for _ in range(len(PROMPT_LENGTHS) - len(models))]
    dice.shuffle(models)
    return [
        Case(model, [dice.randrange(10, oracle.config.vocab_size - 1000) for _ in range(length)])
        for model, length in zip(models, PROMPT_LENGTHS, strict=True)
    ]


def reference_engine(gguf: Path, adapters: dict[str, Path], *, gpu: bool = False, **options: Any) -> Engine:
    options = {
        "kv_cache_memory_bytes": 1 << 30,
        "dtype": "float32",
        "dequantize": True,
        "max_model_len": 1024,
        **options,
    }
    if gpu:
        return gpu_engine(gguf, adapters, capture_seconds=20, **options)
    engine = Engine(str(gguf), **options)
    for name, path in adapters.items():
        engine.load_adapter(name, str(path))
    return engine


def run(engine: Engine, cases: list[Case]) -> list[Request]:
    tokens = GPU_TOKENS if isinstance(engine.worker, GpuWorker) else TOKENS
    requests = [engine.add(case.prompt, case.model, max_tokens=tokens, stop_token_ids=(), logprobs=0) for case in cases]
    while engine.step():
        assert engine.core.check() is None
    assert [request.finish for request in requests] == ["length"] * len(cases)
    return requests


def agrees(oracle: Oracle, adapters: dict[str, Path], case: Case, request: Request) -> None:
    """Same greedy tokens, log-probabilities within the tolerance."""
    read = [*case.prompt, *request.tokens[:-1]]
    reference = oracle.logprobs(read, adapters.get(case.model))[len(case.prompt) - 1 :]
    best = reference.argmax(dim=-1).tolist()
    assert request.tokens == best, f"{case.model or 'base'}, prompt of {len(case.prompt)}"
    chosen = reference[torch.arange(len(best)), best]
    worst = float((chosen - torch.tensor(request.logprobs)).abs().max())
    assert worst < LOGPROB_TOLERANCE, f"{case.model or 'base'}: log-probability off by {worst}"


@pytest.fixture(scope="module", params=[(64, False), (2048, False), (64, True)], ids=["chunked", "whole", "gpu"])
def engine(request: pytest.FixtureRequest, smollm2_gguf: Path, adapters: dict[str, Path]) -> Iterator[Engine]:
    tokens, gpu = request.param
    engine = reference_engine(smollm2_gguf, adapters, gpu=gpu, max_num_batched_tokens=tokens, max_num_seqs=16)
    yield engine
    engine.close()


@pytest.mark.slow
def test_sixteen_mixed_requests_agree_with_the_reference(
    engine: Engine, oracle: Oracle, adapters: dict[str, Path], cases: list[Case]
) -> None:
    for case, request in zip(cases, run(engine, cases), strict=True):
        agrees(oracle, adapters, case, request)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [(64, False)], ids=["chunked"], indirect=True)
def test_the_mixed_batch_equals_each_request_alone(engine: Engine, cases: list[Case]) -> None:
    together = run(engine, cases)
    for case, request in zip(cases, together, strict=True):
        (alone,) = run(engine, [case])
        assert alone.tokens == request.tokens, case.model


@pytest.mark.slow
def test_one_prompt_under_two_adapters_and_the_base_gives_three_answers(
    engine: Engine, oracle: Oracle, adapters: dict[str, Path]
) -> None:
    prompt = engine.text_model.chat([{"role": "user", "content": "Define: lawyer"}])
    first, second = list(adapters)[:2]
    cases = [Case(model, prompt) for model in (first, "", second)]
    requests = run(engine, cases)
    for case, request in zip(cases, requests, strict=True):
        agrees(oracle, adapters, case, request)
    assert len({tuple(request.tokens) for request in requests}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_preemption_and_eviction_change_nothing(
    gpu: bool,
    smollm2_gguf: Path,
    oracle: Oracle,
    adapters: dict[str, Path],
    cases: list[Case],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool that holds a part of the requests and adapters: all must take turns, and nobody's answer shows it."""
    # a second for each look at the clock, so that waits grow long enough for others to make way on any machine
    clock = itertools.count(0, 1_000_000)
    monkeypatch.setattr(Engine, "now", staticmethod(lambda: next(clock)))
    engine = reference_engine(
        smollm2_gguf,
        adapters,
        gpu=gpu,
        kv_cache_memory_bytes=80 << 20,
        max_num_seqs=8,
        max_num_batched_tokens=128,
        preempt_after_tokens=4,
    )
    requests = run(engine, cases)
    stats = engine.stats()
    assert stats.evictions > 0 and stats.preemptions > 0, "the pool was meant to be too small"
    if gpu:
        assert engine.worker.graphs.replays > 0
    for case, request in zip(cases, requests, strict=True):
        agrees(oracle, adapters, case, request)
    engine.close()
