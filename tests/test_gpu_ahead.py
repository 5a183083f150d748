"""Steps that are started before the tokens of the one before are known: the same answers, and faults that stay where
they are. On CPU tensors, with definitions in the kernels' place and graphs recorded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_engine import gpu_engine
from lorad import Engine, Request
from lorad.engine.flights import Flights
from lorad.models.open import open_model
from lorad.worker.gpu.worker import GpuWorker, Running
from lorad.worker.plan import Plan
from make_adapter import make_adapter


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, config = tmp_path_factory.mktemp("adapters"), open_model(base).config
    return {
        f"r{rank}": make_adapter(folder / f"r{rank}", config, rank=rank, modules=modules, seed=rank)
        for rank, modules in ((2, ["q_proj", "down_proj"]), (8, ["gate_proj"]), (16, ["o_proj", "v_proj"]))
    }


class Watched:
    """How many plans are in flight at a commit, and tokens that a plan didn't know."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = self.pending = 0
        finish, start = Flights.finish, GpuWorker.start

        def finished(flights: Flights) -> Any:
            self.ahead += len(flights) > 1
            return finish(flights)

        def started(worker: GpuWorker, plan: Plan) -> Running:
            self.pending += int((plan.token_id[: plan.tokens] < 0).sum())
            return start(worker, plan)

        monkeypatch.setattr(Flights, "finish", finished)
        monkeypatch.setattr(GpuWorker, "start", started)


def mix(engine: Engine, adapters: dict[str, Path], seed: int) -> list[Request]:
    """Prompts in chunks, shared beginnings, stop tokens, temperatures, filters; requests come and are taken back."""
    dice, asked = random.Random(seed), []
    shared = [dice.randrange(200) for _ in range(40)]
    for _ in range(14):
        prompt = shared[: dice.choice([0, 17, 40])] + [dice.randrange(200) for _ in range(dice.randint(1, 40))]
        how: dict[str, Any] = dice.choice(
            [{}] * 5
            + [{"temperature": 1.0, "seed": 7}] * 5
            + [{"temperature": 0.8, "top_k": 5, "seed": 3}, {"logprobs": 1}]
        )
        stop = tuple(range(0, 256, 16)) if dice.random() < 0.5 else ()
        model = dice.choice(["", *adapters])
        asked.append(engine.add(prompt, model, max_tokens=dice.randint(1, 20), stop_token_ids=stop, **how))
        for _ in range(dice.randint(0, 4)):
            engine.step()
            assert engine.core.check() is None
    while engine.step():
        assert engine.core.check() is None
    return asked


@pytest.mark.parametrize("pool", [1 << 20, 160 << 10], ids=["roomy", "scarce"])
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_the_same_as_without(
    pool: int, seed: int, base: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, answers = Watched(monkeypatch), []
    for ahead in (True, False):
        engine = gpu_engine(
            base,
            adapters,
            async_scheduling=ahead,
            deterministic=True,
            max_num_seqs=4,
            max_num_batched_tokens=24,
            block_size=8,
            kv_cache_memory_bytes=pool,
        )
        answers.append([(one.tokens, one.finish) for one in mix(engine, adapters, seed)])
        stats = engine.stats()
        assert stats.running == stats.waiting == 0
        engine.close()
        if ahead:
            assert watched.ahead > 3 and watched.pending > 3, "the mix was meant to let steps be ahead"
            watched.ahead = watched.pending = 0
    assert answers[0] == answers[1]
    assert {finish for _, finish in answers[0]} == {"stop", "length"}
    assert watched.ahead == watched.pending == 0


def test_a_request_that_is_taken_back_meanwhile(base: Path, adapters: dict[str, Path]) -> None:
    engine = gpu_engine(base, adapters, max_num_seqs=4)
    alone = engine.add([5, 6, 7], "r2", max_tokens=20, stop_token_ids=())
    while engine.step():
        pass
    kept = engine.add([5, 6, 7], "r2", max_tokens=20, stop_token_ids=())
    gone = engine.add([8, 9], "r8", max_tokens=20, stop_token_ids=())
    for _ in range(4):
        engine.step()
    engine.abort(gone.id)
    while engine.step():
        assert engine.core.check() is None
    assert kept.tokens == alone.tokens and gone.finish == "abort"
    engine.close()


@pytest.mark.parametrize("where", ["start", "finish"])
def test_a_step_that_fails_ends_its_own_requests(
    where: str, base: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another was started after it, or runs before it."""
    engine = gpu_engine(base, adapters, max_num_seqs=4, max_num_batched_tokens=8)
    reference = engine.add([1, 2, 3], "r16", max_tokens=6, stop_token_ids=())
    while engine.step():
        pass
    failing = [engine.add([5, 6, 7, n], "r2", max_tokens=20, stop_token_ids=()) for n in range(2)]
    for _ in range(5):
        engine.step()
    real = getattr(GpuWorker, where)

    def broken(worker: GpuWorker, given: Any) -> Any:
        monkeypatch.setattr(GpuWorker, where, real)
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(GpuWorker, where, broken)
    engine.step()
    after = engine.add([1, 2, 3], "r16", max_tokens=6, stop_token_ids=())
    while engine.step():
        assert engine.core.check() is None
    assert [request.finish for request in failing] == ["error", "error"]
    assert after.tokens == reference.tokens
    assert engine.stats().running == 0
    engine.close()


def test_rows_that_the_host_samples_are_waited_for(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    engine = gpu_engine(base, {}, max_num_seqs=2)
    engine.add([1, 2], max_tokens=8, stop_token_ids=(), logprobs=1)
    while engine.step():
        pass
    assert watched.ahead == watched.pending == 0
    engine.add([1, 2], max_tokens=8, stop_token_ids=())
    while engine.step():
        pass
    assert watched.ahead > 0 and watched.pending == 7, "each token but the first is read on the device"
    engine.close()


def test_what_a_bucket_has_beyond_the_step_changes_no_line(base: Path) -> None:
    """Three rows in a graph of four: the fourth writes nowhere."""
    engine = gpu_engine(base, {}, max_num_seqs=4)
    asked = [engine.add([n, n + 1], max_tokens=4 * n, stop_token_ids=()) for n in (1, 2, 3, 4)]
    while engine.step():
        pass
    for request in asked:
        again = engine.add(request.prompt, max_tokens=len(request.tokens), stop_token_ids=())
        while engine.step():
            pass
        assert np.array_equal(again.tokens, request.tokens)
    engine.close()
