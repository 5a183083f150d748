"""The GPU worker on several ranks: processes with gloo on CPU tensors, against the same worker in one process."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from gpu_engine import gpu_engine
from lorad import Engine, Request
from lorad.config import EngineConfig
from lorad.demo.tenant import tenants
from lorad.engine.client import ProcessEngine
from lorad.engine.messages import Finished, Generate, Sampling
from lorad.errors import EngineLost, InvalidRequest, LoradError
from lorad.models.open import open_model
from lorad.worker.gpu.leading import leading_worker
from make_adapter import make_adapter
from ranks import find_tests, leader_of, make_ranks, ranks_engine
from test_server_process import Collector
from tiny import make_tiny
from trained_adapter import train

LOGPROB_TOLERANCE = 1e-3
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}
"""Three groups of heads: of two ranks one has a group of zeros, of four one has nothing else."""


@pytest.fixture(autouse=True)
def tests_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    find_tests(monkeypatch)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), "qwen3", **SMALL)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of different ranks, one with gains, biases, embedding and head."""
    folder, config = tmp_path_factory.mktemp("adapters"), open_model(base).config
    found = {
        f"r{rank}": make_adapter(folder / f"r{rank}", config, rank=rank, modules=modules, seed=rank)
        for rank, modules in ((3, ["q_proj", "o_proj"]), (24, ["v_proj", "gate_proj", "down_proj"]))
    }
    targets = ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj", "lm_head", "embed_tokens"]
    found["all"] = train(base, folder / "all", r=8, lora_alpha=16, target_modules=targets, use_dora=True, strength=0.2)
    return found


def answers(engine: Engine, asked: list[tuple[list[int], str]], tokens: int, **more: Any) -> list[Request]:
    """Greedy, all at once."""
    requests = [
        engine.add(prompt, model, max_tokens=tokens, stop_token_ids=(), logprobs=0, **more) for prompt, model in asked
    ]
    while engine.step():
        assert engine.core.check() is None
    assert [request.finish for request in requests] == ["length"] * len(requests)
    return requests


def agree(found: list[Request], wanted: list[Request]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.tokens == other.tokens, one.model
        assert max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) < LOGPROB_TOLERANCE


def mix(adapters: dict[str, Path], vocab: int) -> list[tuple[list[int], str]]:
    dice = random.Random(7)
    return [
        ([dice.randrange(vocab) for _ in range(dice.randint(1, 50))], model) for model in ["", *adapters, *adapters, ""]
    ]


def ended(pids: list[int]) -> None:
    """Of children that this process has waited for, or of others' that have ended a moment ago."""
    gone, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], 20)
    assert not alive, gone


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {"max_num_batched_tokens": 24}),
        (4, {"enforce_eager": True, "deterministic": True}),
    ],
    ids=["two, graphs, prompts in pieces", "four, deterministic"],
)
def test_ranks_answer_as_one_does(base: Path, adapters: dict[str, Path], ranks: int, options: dict[str, Any]) -> None:
    """Pools are so small that adapters come and go: their parts are copied in on each rank, to where others were."""
    asked = mix(adapters, open_model(base).config.vocab)
    options = {"max_num_seqs": 3, "max_loras": 2, **options}
    alone = gpu_engine(base, adapters, **options)
    wanted = answers(alone, asked, 8)
    alone.close()
    engine = ranks_engine(base, adapters, ranks, kv_cache_memory_bytes=(640 << 10) // ranks, **options)
    pids = leader_of(engine).pids
    assert len(pids) == ranks - 1
    agree(answers(engine, asked, 8), wanted)
    assert engine.stats().evictions > 0 and engine.stats().page_ins_failed == 0
    engine.unload_adapter("r3")
    engine.close()
    ended(pids)


@pytest.fixture(scope="module")
def two(base: Path, adapters: dict[str, Path]) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        find_tests(patch)
        engine = ranks_engine(base, adapters, 2, enforce_eager=True, max_num_seqs=3)
    yield engine
    if engine.worker.lost is None:
        engine.close()


def test_scores_of_prompts(base: Path, adapters: dict[str, Path], two: Engine) -> None:
    """Logits of other tokens of a step are joined too."""
    asked = mix(adapters, open_model(base).config.vocab)[:3]
    alone = gpu_engine(base, adapters, graphs=False, max_num_seqs=3)
    found, wanted = (
        [[one.chosen for one in request.prompt_logprobs] for request in answers(engine, asked, 1, prompt_logprobs=0)]
        for engine in (two, alone)
    )
    alone.close()
    for one, other, (prompt, _) in zip(found, wanted, asked, strict=True):
        assert len(one) == len(prompt) - 1
        assert one == pytest.approx(other, abs=LOGPROB_TOLERANCE)


def test_another_engine_of_ranks_in_the_same_process_is_refused(base: Path, two: Engine) -> None:
    with pytest.raises(InvalidRequest, match=r"tensor_parallel_size: got 2, but this process") as refusal:
        ranks_engine(base, {}, 2)
    assert (refusal.value.code, refusal.value.param) == ("option_conflict", "tensor_parallel_size")
    assert answers(two, [([5, 6, 7], "")], 2), "the first one goes on"


def test_a_killed_rank_ends_the_engine_with_its_number(two: Engine) -> None:
    """In the middle of a request: the next step says which rank and how it ended. Nobody uses this engine after it."""
    two.add(list(range(5, 30)), "all", max_tokens=400, stop_token_ids=())
    for _ in range(5):
        assert two.step() is not None
    (pid,) = leader_of(two).pids
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineLost, match=r"rank 1 was killed by SIGKILL") as lost:
        while two.step():
            pass
    assert lost.value.code == "rank_lost"
    with pytest.raises(EngineLost, match="rank 1"):
        two.add([5], max_tokens=1)
    two.close()


def test_a_rank_that_cant_begin_says_why(base: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match=r"rank 1 ended with status 1"):
        make = partial(leading_worker, maker="ranks:no_such_maker", backend="gloo")
        Engine(str(base), make_worker=make, tensor_parallel_size=2)


def test_what_ranks_cant_do_is_refused(base: Path) -> None:
    with pytest.raises(InvalidRequest, match="at most 1 with --device cpu, got 2") as refusal:
        Engine(str(base), tensor_parallel_size=2)
    assert (refusal.value.code, refusal.value.param) == ("option_conflict", "tensor_parallel_size")
    with pytest.raises(InvalidRequest, match="tensor_parallel_size 2 only 0 can be served, got 3") as refusal:
        Engine(str(base), make_worker=make_ranks, tensor_parallel_size=2, max_combined_adapters=3)
    assert (refusal.value.code, refusal.value.param) == ("option_conflict", "max_combined_adapters")


def test_more_ranks_than_gpus_are_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InvalidRequest, match=r"tensor_parallel_size: at most 1, as many GPUs.*got 2") as refusal:
        Engine(str(base), device="cuda", tensor_parallel_size=2)
    assert (refusal.value.code, refusal.value.param) == ("device_missing", "tensor_parallel_size")


async def test_the_front_starts_another_engine_when_a_rank_dies(base: Path, adapters: dict[str, Path]) -> None:
    """While nobody asks for anything. Adapters are read by the loader process, the next engine has other ranks."""
    config = EngineConfig(
        model=str(base),
        dtype="float32",
        kv_cache_memory_bytes=4 << 20,
        max_num_seqs=2,
        tensor_parallel_size=2,
        enforce_eager=True,
    )
    dead = asyncio.Event()
    engine = ProcessEngine(config, engine="ranks:process_ranks", will_load=True)
    engine.on_death = dead.set
    await engine.start()
    found = []
    try:
        for request in (1, 2):
            info = await engine.load_adapter("all", str(adapters["all"]))
            sink = Collector()
            sampling = Sampling(max_tokens=6, temperature=0.0)
            engine.submit(Generate(request, [5, 6, 7], sampling, info.generation), sink)
            await asyncio.wait_for(sink.flushed.wait(), 60)
            assert isinstance(sink.end, Finished) and sink.end.reason == "length", sink.end
            found.append(sink.tokens)
            if request == 2:
                break
            rank = rank_of(engine)
            rank.kill()
            await asyncio.wait_for(dead.wait(), 60)
            assert isinstance(engine.fault, LoradError) and "rank 1 was killed by SIGKILL" in engine.fault.message
            assert not rank.is_running()
            await engine.restart()
            engine.resume()
        assert found[0] == found[1]
        last = rank_of(engine)
        engine.kill()  # nobody is left who could tell the ranks
        ended([last.pid])
    finally:
        await engine.stop()


def rank_of(engine: ProcessEngine) -> psutil.Process:
    assert engine.pid is not None
    (found,) = (child for child in psutil.Process(engine.pid).children() if "lorad.worker.gpu.rank" in child.cmdline())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_embedded_base_and_its_tenants(smollm2_gguf: Path, ranks: int) -> None:
    """9 heads in 3 groups, quantised blocks, trained adapters."""
    adapters = {tenant.name: Path(tenant.path) for tenant in tenants()[:3]}
    options: dict[str, Any] = {"max_num_seqs": 4, "enforce_eager": True}
    alone = gpu_engine(smollm2_gguf, adapters, graphs=False, kv_cache_memory_bytes=64 << 20, max_num_seqs=4)
    prompt = alone.text_model.chat([{"role": "user", "content": "Define: lawyer"}])
    asked = [(prompt, model) for model in ("", *adapters)]
    wanted = answers(alone, asked, 6)
    assert len({tuple(request.tokens) for request in wanted}) > 1, "adapters matter"
    alone.close()
    engine = ranks_engine(smollm2_gguf, adapters, ranks, kv_cache_memory_bytes=64 << 20, **options)
    agree(answers(engine, asked, 6), wanted)
    engine.close()
