"""The GPU worker's whole path, on CPU tensors, against transformers + PEFT in fp32.

Definitions stand in the kernels' places, or Triton's interpreter runs these; decode steps go through captured graphs,
of which a double records what they start. Mixes are random: prompts in chunks, pages that run out, adapters that come
and go, shared beginnings.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_engine import gpu_engine
from lorad import Engine, Request
from lorad.errors import InvalidRequest
from lorad.models.open import open_model
from lorad.worker.gpu.graphs import Graphs
from lorad.worker.gpu.linear import FourBit
from make_adapter import make_adapter
from oracle import oracle
from tiny import FAMILIES, WIDE, make_tiny, make_tiny_gguf

MIXES = int(os.environ.get("LORAD_MIXES", "3"))
TOKENS = 10
RANKS = (1, 3, 8, 17, 64, 256)
LOGPROB_TOLERANCE = 1e-3


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    more = {"num_hidden_layers": 7, "sliding_window": 24} if request.param == "gemma3" else {}
    return make_tiny(tmp_path_factory.mktemp(request.param), request.param, **more)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("llama"), num_hidden_layers=2)


def adapters_for(base: Path, folder: Path, ranks: tuple[int, ...] = RANKS) -> dict[str, Path]:
    """Random ones on random modules."""
    config, dice = open_model(base).config, random.Random(5)
    names = [module.name for module in config.modules()]
    return {
        f"r{rank}": make_adapter(
            folder / f"r{rank}",
            config,
            rank=rank,
            modules=dice.sample(names, dice.randint(1, len(names))),
            seed=rank,
            dtype=dice.choice([torch.float32, torch.float16, torch.bfloat16]),
        )
        for rank in ranks
    }


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return adapters_for(base, tmp_path_factory.mktemp("adapters"))


def graphs_of(engine: Engine) -> Graphs:
    graphs: Graphs = engine.worker.graphs  # type: ignore[attr-defined]
    return graphs


def run(engine: Engine, asked: list[Request]) -> None:
    while engine.step():
        assert engine.core.check() is None
    assert [request.finish for request in asked] == ["length"] * len(asked)


def agrees(base: Path, adapters: dict[str, Path], request: Request) -> None:
    """Same greedy tokens, log-probabilities within the tolerance."""
    read = [*request.prompt, *request.tokens[:-1]]
    reference = oracle(base).logprobs(read, adapters.get(request.model))[len(request.prompt) - 1 :]
    best = reference.argmax(dim=-1).tolist()
    assert request.tokens == best, f"{request.model or 'base'}, prompt of {len(request.prompt)}"
    if request.logprobs:
        chosen = reference[torch.arange(len(best)), best]
        assert float((chosen - torch.tensor(request.logprobs)).abs().max()) < LOGPROB_TOLERANCE


@pytest.mark.parametrize("seed", range(MIXES))
def test_random_mixes_agree_with_the_reference(base: Path, adapters: dict[str, Path], seed: int) -> None:
    dice = random.Random(seed)
    engine = gpu_engine(
        base,
        adapters,
        graphs=dice.random() < 0.7,
        max_num_seqs=dice.choice([1, 3, 6]),
        max_num_batched_tokens=dice.choice([8, 33, 256]),
        block_size=dice.choice([8, 16]),
        kv_cache_memory_bytes=dice.choice([1 << 20, 2 << 20]),
        deterministic=dice.random() < 0.3,
    )
    vocab, shared = open_model(base).config.vocab, [dice.randrange(256) for _ in range(40)]
    asked = []
    for _ in range(10):
        prompt = shared[: dice.choice([0, 0, 17, 40])] + [dice.randrange(vocab) for _ in range(dice.randint(1, 60))]
        model = dice.choice(["", *adapters])
        more: dict[str, Any] = {"logprobs": 0} if dice.random() < 0.3 else {}
        asked.append(engine.add(prompt, model, max_tokens=TOKENS, stop_token_ids=(), **more))
        for _ in range(dice.randint(0, 4)):
            engine.step()
    run(engine, asked)
    for request in asked:
        agrees(base, adapters, request)
    engine.close()


@pytest.fixture
def small(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, dict[str, Path]]]:
    """Two layers, room for two adapters at a time, graphs all captured."""
    adapters = adapters_for(llama, tmp_path_factory.mktemp("few"), (2, 8, 16, 24))
    engine = gpu_engine(llama, adapters, max_num_seqs=3, max_loras=2, kv_cache_memory_bytes=192 << 10)
    while graphs_of(engine).pending:
        graphs_of(engine).capture(60)
    yield engine, adapters
    engine.close()


def test_no_graph_is_captured_again_whatever_becomes_of_adapters(
    llama: Path, small: tuple[Engine, dict[str, Path]]
) -> None:
    """Adapters evicted, brought back to other slots and pages, of other ranks: graphs find them by the table."""
    engine, adapters = small
    graphs = graphs_of(engine)
    captured, dice = graphs.captures, random.Random(0)
    for _ in range(12):
        asked = [
            engine.add([dice.randrange(256) for _ in range(dice.randint(1, 9))], model, max_tokens=6, stop_token_ids=())
            for model in dice.sample(["", *adapters], 3)
        ]
        run(engine, asked)
        for request in asked:
            agrees(llama, adapters, request)
    assert graphs.captures == captured and graphs.replays > 30
    assert engine.stats().evictions > 5, "the pool was small enough for pages to change hands"


def test_rows_sampled_on_the_device_are_the_hosts(llama: Path, small: tuple[Engine, dict[str, Path]]) -> None:
    """Log-probabilities are asked of the host: the same requests with and without. Grammars and filters beside them."""
    engine, adapters = small
    answers: list[list[list[int]]] = []
    for more in ({}, {"logprobs": 0}):
        asked = []
        for number, model in enumerate([*adapters, "", "", *adapters]):
            kind: list[dict[str, Any]] = [{}, {"top_k": 3}, {"top_p": 0.7}, {"logit_bias": {7: 5.0}}, {"min_tokens": 3}]
            heat = {"temperature": [0.0, 0.7, 1.5][number % 3], "seed": 2**63 + number}
            some = {**heat, **kind[number % 5], **more}
            asked.append(engine.add([5, 6, number], model, max_tokens=8, stop_token_ids=(), **some))
        run(engine, asked)
        answers.append([request.tokens for request in asked])
    assert answers[0] == answers[1]
    assert len({tuple(tokens) for tokens in answers[0]}) > 5


def test_a_slot_that_holds_another_generation_fails_its_row_alone(
    llama: Path, small: tuple[Engine, dict[str, Path]]
) -> None:
    """The tag is compared where the addresses are read: no table edit can give a row to another tenant's weights."""
    engine, adapters = small
    hurt, well = (engine.add([5, 6], model, max_tokens=9, stop_token_ids=()) for model in ("r8", ""))
    while not hurt.tokens:
        engine.step()
    engine.worker.table.table.tags.add_(1)  # type: ignore[attr-defined]
    while engine.step():
        pass
    assert hurt.finish == "error" and well.finish == "length"
    agrees(llama, adapters, well)


def test_two_layers_entirely_by_the_interpreter(llama: Path, tmp_path: Path) -> None:
    """Every kernel of a mixed batch: prompts in chunks, decode steps by graphs, several ranks, base rows."""
    adapters = adapters_for(llama, tmp_path, (3, 24))
    engine = gpu_engine(llama, adapters, kernels=True, max_num_seqs=3, max_num_batched_tokens=24, block_size=8)
    asked = [
        engine.add([*range(length)], model, max_tokens=3, stop_token_ids=())
        for length, model in ((3, ""), (20, "r3"), (7, "r24"))
    ]
    run(engine, asked)
    for request in asked:
        agrees(llama, adapters, request)
    assert graphs_of(engine).replays
    engine.close()


@pytest.mark.parametrize(
    ("kind", "kernels"),
    [*((kind, False) for kind in ("Q4_0", "Q4_1", "Q4_K", "Q6_K", "mixed")), ("Q4_K", True)],
    ids=lambda value: value if isinstance(value, str) else ("interpreted" if value else "definitions"),
)
def test_a_base_of_four_bits_is_multiplied_as_it_is(kind: str, kernels: bool, tmp_path: Path) -> None:
    """Against the reference on the same file, dequantised. What has other types in the file is widened."""
    tiny = make_tiny(tmp_path / "tiny", num_hidden_layers=2, **WIDE)
    modules = {"v_proj": "Q6_K", "down_proj": "Q4_0"} if kind == "mixed" else {}
    base = make_tiny_gguf(tiny, tmp_path / "tiny.gguf", "Q4_1" if kind == "mixed" else kind, modules=modules)
    adapters = adapters_for(base, tmp_path, (3,))
    engine = gpu_engine(base, adapters, kernels=kernels, max_num_seqs=2, block_size=8)
    layer = engine.worker.model.layers[1]  # type: ignore[attr-defined]
    narrow = [isinstance(linear, FourBit) for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    assert narrow == {"Q6_K": [False] * 4, "mixed": [False, True, True, True]}.get(kind, [True] * 4)
    asked = [engine.add([5, 6, 7, n], m, max_tokens=3, stop_token_ids=()) for n, m in enumerate(["", "r3", "r3"])]
    run(engine, asked)
    for request in asked:
        agrees(base, adapters, request)
    engine.close()


def test_a_gpu_that_isnt_there_is_refused(llama: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InvalidRequest, match="device: cuda was asked for") as refusal:
        Engine(str(llama), device="cuda")
    assert (refusal.value.code, refusal.value.param) == ("device_missing", "device")
