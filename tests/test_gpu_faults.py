"""Slots, eviction and isolation within a batch, on the GPU worker's path: group 4 of the known faults, by its numbers.

Decode steps are replays of graphs that were all captured before any adapter was there; adapters come to other slots and
pages all the time. What is right is the reference's answer, or the same request's alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpu_engine import gpu_engine
from lorad import Engine, Request
from lorad.models.open import open_model
from lorad.worker.gpu.worker import GpuWorker
from make_adapter import make_adapter
from oracle import oracle
from tiny import make_tiny

TOKENS = 12
SHAPES = {
    "wide": (32, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "narrow": (4, ["q_proj"]),
    "down": (16, ["down_proj"]),
    "mlp": (8, ["gate_proj", "up_proj"]),
    "one": (1, ["o_proj", "v_proj"]),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), num_hidden_layers=2)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, config = tmp_path_factory.mktemp("adapters"), open_model(base).config
    return {
        name: make_adapter(folder / name, config, rank=rank, modules=modules, seed=rank, dtype=torch.bfloat16)
        for name, (rank, modules) in SHAPES.items()
    }


@pytest.fixture
def engine(base: Path, adapters: dict[str, Path]) -> Iterator[Engine]:
    """Two adapters in a step; pages for the largest and a little more, so that others make way."""
    made = gpu_engine(base, adapters, max_num_seqs=4, max_loras=2, kv_cache_memory_bytes=224 << 10)
    yield made
    made.close()


def worker_of(engine: Engine) -> GpuWorker:
    worker = engine.worker
    assert isinstance(worker, GpuWorker) and worker.graphs is not None and not worker.graphs.pending
    return worker


def ask(engine: Engine, model: str, seed: int, tokens: int = TOKENS) -> Request:
    dice = random.Random(seed)
    prompt = [dice.randrange(256) for _ in range(dice.randint(1, 20))]
    return engine.add(prompt, model, max_tokens=tokens, stop_token_ids=())


def finish(engine: Engine) -> None:
    while engine.step():
        assert engine.core.check() is None


def right(base: Path, adapters: dict[str, Path], *asked: Request) -> bool:
    """Whether all have the reference's tokens."""
    assert [request.finish for request in asked] == ["length"] * len(asked)
    return all(
        tuple(request.tokens)
        == oracle(base).greedy(request.prompt, len(request.tokens), adapters.get(request.model)).tokens
        for request in asked
    )


def test_4_1_a_slot_in_use_is_nobody_elses(base: Path, adapters: dict[str, Path], engine: Engine) -> None:
    """Long streams on two adapters while the others come and go: theirs wait, and end well."""
    streams = [ask(engine, model, seed, 40) for seed, model in enumerate(("wide", "narrow"))]
    others = []
    for turn in range(20):
        engine.step()
        if turn % 4 == 0:
            others.append(ask(engine, ("down", "mlp", "one")[turn // 4 % 3], turn))
    finish(engine)
    assert right(base, adapters, *streams, *others)


def test_4_2_nothing_is_left_of_who_had_a_slot_before(base: Path, adapters: dict[str, Path], engine: Engine) -> None:
    for turn in range(3):
        for model in ("wide", "narrow", "wide", "down"):
            asked = ask(engine, model, turn)
            finish(engine)
            assert right(base, adapters, asked), f"{model}, turn {turn}"
    assert engine.stats().evictions >= 3


def test_4_3_who_names_no_adapter_gets_the_bits_of_an_engine_without_any(
    base: Path, adapters: dict[str, Path], engine: Engine
) -> None:
    bare = gpu_engine(base, {}, max_num_seqs=4)
    for seed in range(4):
        asked = [ask(engine, model, seed) for model in ("", "wide", "narrow")]
        finish(engine)
        alone = ask(bare, "", seed)
        finish(bare)
        assert asked[0].tokens == alone.tokens and right(base, adapters, *asked)
    bare.close()


@pytest.mark.parametrize("seed", range(3))
def test_4_4_and_4_5_every_row_is_as_it_is_alone(
    base: Path, adapters: dict[str, Path], engine: Engine, seed: int
) -> None:
    """32 requests at random, some short, so that batches shrink and pointers and indices change places."""
    dice = random.Random(seed)
    asked = [ask(engine, dice.choice(["", *adapters]), 100 * seed + n, dice.choice([1, 2, 5, 12])) for n in range(32)]
    finish(engine)
    assert right(base, adapters, *asked)
    assert worker_of(engine).graphs.replays  # type: ignore[union-attr]


def test_4_6_registered_adapters_take_turns(base: Path, adapters: dict[str, Path], engine: Engine) -> None:
    """More of them than there is room for in a step, each three times."""
    asked = [ask(engine, model, turn) for turn in range(3) for model in adapters]
    finish(engine)
    assert right(base, adapters, *asked)


def test_pages_that_move_between_replays(base: Path, adapters: dict[str, Path], engine: Engine) -> None:
    """The same adapter and prompt in other pages each time, decoded by the same graphs: the same tokens."""
    worker, seen, places = worker_of(engine), set(), set()
    captured = worker.graphs.captures  # type: ignore[union-attr]
    for turn in range(6):
        for model in ("one", "narrow", "down")[: turn % 4]:
            ask(engine, model, turn, 2)
        finish(engine)
        asked = ask(engine, "mlp", 7)
        engine.step()
        while not asked.tokens:
            engine.step()
        tags = worker.table.table.tags.tolist()
        places.add((tuple(tags), tuple(worker.table.table.runs[:4, 0].tolist())))
        finish(engine)
        seen.add(tuple(asked.tokens))
        assert right(base, adapters, asked)
    assert len(seen) == 1 and len(places) > 1
    assert worker.graphs.captures == captured  # type: ignore[union-attr]
