"""Known ways in which one adapter's weights reach another's request: caches (3), slots and batches (4), swaps (2.12).

Black-box, on a tiny model against transformers + PEFT in fp32. The numbers in the names are the catalogue's; the table
from entry to test is docs/faults.md.
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from lorad import Engine, Request
from lorad.models.config import MODULES
from lorad.models.open import open_model
from make_adapter import make_adapter
from oracle import oracle
from tiny import make_tiny

TOKENS = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, config = tmp_path_factory.mktemp("adapters"), open_model(base).config
    shapes: dict[str, tuple[int, list[str]]] = {
        "wide": (32, list(MODULES)),
        "narrow": (4, ["q_proj"]),
        "down": (16, ["down_proj"]),
    } | {f"a{number}": (8, list(MODULES)) for number in range(8)}
    return {
        name: make_adapter(folder / name, config, rank=rank, modules=modules, seed=number)
        for number, (name, (rank, modules)) in enumerate(shapes.items())
    }


def make(base: Path, adapters: dict[str, Path], **options: object) -> Engine:
    engine = Engine(str(base), **{"dtype": "float32", "dequantize": True, "kv_cache_memory_bytes": 2 << 20, **options})
    for name, path in adapters.items():
        engine.load_adapter(name, str(path))
    return engine


def pages_for(base: Path, adapters: dict[str, Path], names: list[str], tokens: int) -> int:
    """Bytes of a pool that holds these adapters and one row of so many tokens, and no page more."""
    engine = make(base, {name: adapters[name] for name in names})
    pages = max(engine.adapters.names[name].pages for name in names) * len(names) + -(-tokens // 16) + 1
    engine.close()
    return pages * engine.worker.geometry.page_bytes


def finish(engine: Engine) -> None:
    while engine.step():
        assert engine.core.check() is None


def ask(engine: Engine, model: str, prompt: list[int], tokens: int = TOKENS) -> list[int]:
    request = engine.add(prompt, model, max_tokens=tokens, stop_token_ids=())
    finish(engine)
    assert request.finish == "length"
    return request.tokens


@lru_cache(maxsize=1024)
def _best(base: Path, adapter: Path | None, read: tuple[int, ...], answer: int) -> list[int]:
    """The reference's best token at each place of an answer that it reads in one pass."""
    best: list[int] = oracle(base).logprobs(list(read), adapter)[-answer:].argmax(dim=-1).tolist()
    return best


def agrees(base: Path, adapter: Path | None, prompt: list[int], tokens: list[int]) -> bool:
    """Whether an answer is the reference's greedy one: each of its tokens is the best one there."""
    return _best(base, adapter, (*prompt, *tokens[:-1]), len(tokens)) == tokens


def test_cached_prefixes_are_an_adapters_own_3_1(base: Path, adapters: dict[str, Path]) -> None:
    engine, prompt = make(base, adapters), list(range(3, 70))
    seen: set[str] = set()
    for model in ("", "a0", "a1", "a0", "", "a1", "wide"):
        request = engine.add(prompt, model, max_tokens=TOKENS, stop_token_ids=())
        finish(engine)
        told = engine.explain(request.id)
        assert told is not None and (told["cached_tokens"] > 0) == (model in seen)
        assert agrees(base, adapters.get(model), prompt, request.tokens)
        seen.add(model)
    engine.close()


def test_names_and_slots_are_used_again_without_their_caches_3_3(base: Path, adapters: dict[str, Path]) -> None:
    engine, prompt, dice = make(base, {}), list(range(5, 60)), random.Random(3)
    for _ in range(50):
        name, content = dice.choice(["x", "y", "z"]), dice.choice(list(adapters))
        engine.load_adapter(name, str(adapters[content]))
        assert agrees(base, adapters[content], prompt, ask(engine, name, prompt))
        if dice.random() < 0.7:
            engine.unload_adapter(name)
            finish(engine)
    engine.close()


def test_an_adapter_in_use_keeps_its_slot_4_1(base: Path, adapters: dict[str, Path]) -> None:
    """Room for two; the others are wanted all the time while two streams run."""
    prompt = [9, 8, 7]
    pool = pages_for(base, adapters, ["a0", "a1"], 2 * 110)
    engine = make(base, adapters, kv_cache_memory_bytes=pool, max_loras=2)
    streams = [engine.add(prompt, name, max_tokens=100, stop_token_ids=()) for name in ("a0", "a1")]
    while min(len(stream.tokens) for stream in streams) < 5:
        engine.step()
    others: list[Request] = []
    while any(stream.finish is None for stream in streams):
        others.append(engine.add([len(others) + 3], f"a{2 + len(others) % 6}", max_tokens=2, stop_token_ids=()))
        engine.step()
    for name, stream in zip(("a0", "a1"), streams, strict=True):
        assert agrees(base, adapters[name], prompt, stream.tokens)
    for other in others:
        engine.abort(other.id)
    finish(engine)
    engine.close()


def test_nothing_is_left_of_a_slots_last_occupant_4_2_and_2_6(base: Path, adapters: dict[str, Path]) -> None:
    two = {name: adapters[name] for name in ("wide", "narrow")}
    engine = make(base, two, kv_cache_memory_bytes=pages_for(base, adapters, ["wide"], 40), max_loras=1)
    prompt = [11, 12, 13]
    for name in ("wide", "narrow", "wide", "narrow"):
        assert agrees(base, adapters[name], prompt, ask(engine, name, prompt))
    assert engine.stats().evictions >= 3
    engine.close()


def test_no_adapter_is_exactly_the_base_4_3(base: Path, adapters: dict[str, Path]) -> None:
    alone, beside = make(base, {}), make(base, adapters)
    for length in (1, 17, 40):
        prompt = list(range(3, 3 + length))
        requests = [engine.add(prompt, max_tokens=TOKENS, stop_token_ids=(), logprobs=3) for engine in (alone, beside)]
        noise = [beside.add(prompt, name, max_tokens=TOKENS, stop_token_ids=()) for name in adapters]
        finish(alone)
        finish(beside)
        assert requests[0].tokens == requests[1].tokens and all(one.finish == "length" for one in noise)
        torch.testing.assert_close(requests[0].logprobs, requests[1].logprobs, rtol=0, atol=1e-5)
    alone.close()
    beside.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_adapter_is_a_property_of_the_row_4_4_and_4_5(base: Path, adapters: dict[str, Path], seed: int) -> None:
    """64 at once over adapters of unlike ranks and modules and the base, some ending early."""
    dice = random.Random(seed)
    engine = make(base, adapters)
    asked = []
    for _ in range(64):
        model = dice.choice([*adapters, ""])
        prompt = [dice.randrange(3, 250) for _ in range(dice.choice([1, 5, 20]))]
        tokens = dice.choice([2, 6, 12])
        asked.append((model, prompt, tokens, engine.add(prompt, model, max_tokens=tokens, stop_token_ids=())))
    finish(engine)
    for model, prompt, tokens, request in asked:
        assert len(request.tokens) == tokens and agrees(base, adapters.get(model), prompt, request.tokens), model
    engine.close()


def test_registered_adapters_rotate_through_the_slots_4_6_and_2_12(base: Path, adapters: dict[str, Path]) -> None:
    """Eight registered, room for two: ten rounds, each answer the same as in the first."""
    eight = {name: path for name, path in adapters.items() if name.startswith("a")}
    pool = pages_for(base, adapters, ["a0", "a1"], 40)
    engine = make(base, eight, kv_cache_memory_bytes=pool, max_loras=2)
    prompt = [21, 22, 23]
    answers: dict[str, list[int]] = {}
    for _ in range(10):
        for name in eight:
            answer = ask(engine, name, prompt)
            assert agrees(base, adapters[name], prompt, answer) and answers.setdefault(name, answer) == answer
    assert engine.stats().page_ins > 60
    engine.close()


def test_everybody_left_before_the_load_was_done_6_12(base: Path, adapters: dict[str, Path]) -> None:
    eight = {name: path for name, path in adapters.items() if name.startswith("a")}
    pool = pages_for(base, adapters, ["a0", "a1"], 40)
    engine = make(base, eight, kv_cache_memory_bytes=pool, max_loras=2)
    for _ in range(3):
        for name in eight:
            request = engine.add([5, 6], name, max_tokens=4, stop_token_ids=())
            engine.step()
            engine.abort(request.id)
    for name in eight:
        assert agrees(base, adapters[name], [5, 6], ask(engine, name, [5, 6]))
    engine.close()
