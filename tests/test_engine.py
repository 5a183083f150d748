"""The engine by hand on a tiny model: mixed adapters against the reference, failures, aborts, unloads."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lorad import Engine, Request, _core
from lorad.engine.refusals import KINDS
from lorad.errors import InvalidRequest, NotFound, Overloaded, Unavailable
from lorad.models.config import MODULES
from lorad.models.open import open_model
from make_adapter import make_adapter
from oracle import oracle
from tiny import make_tiny, make_tiny_gguf

TOKENS = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ranks 1 to 100 on random modules and layers, in three number types."""
    folder, config, dice = tmp_path_factory.mktemp("adapters"), open_model(base).config, random.Random(5)
    return {
        f"r{rank}": make_adapter(
            folder / f"r{rank}",
            config,
            rank=rank,
            modules=sorted(dice.sample(MODULES, dice.randint(1, 7)), key=MODULES.index),
            layers=sorted(dice.sample(range(config.layers), dice.randint(1, config.layers))),
            seed=rank,
            dtype=dice.choice([torch.float32, torch.float16, torch.bfloat16]),
        )
        for rank in (1, 2, 7, 8, 9, 16, 31, 100)
    }


def make(base: Path, adapters: dict[str, Path], **options: object) -> Engine:
    engine = Engine(str(base), **{"dtype": "float32", "dequantize": True, "kv_cache_memory_bytes": 4 << 20, **options})
    for name, path in adapters.items():
        engine.load_adapter(name, str(path))
    return engine


def finish(engine: Engine) -> None:
    while engine.step():
        assert engine.core.check() is None


@pytest.mark.parametrize("seed", range(12))
def test_random_mixes_agree_with_the_reference(base: Path, adapters: dict[str, Path], seed: int) -> None:
    """Random adapters, lengths, arrival times and aborts, in pools and steps of random size."""
    dice, reference = random.Random(seed), oracle(base)
    engine = make(
        base,
        adapters,
        max_num_seqs=dice.choice([2, 5, 12]),
        max_num_batched_tokens=dice.choice([12, 40, 512]),
        kv_cache_memory_bytes=dice.choice([1 << 19, 1 << 20, 4 << 20]),
        block_size=dice.choice([4, 16]),
    )
    asked: list[tuple[str, list[int], Request]] = []
    for _ in range(14):
        model = dice.choice([*adapters, "", ""])
        prompt = [dice.randrange(3, 250) for _ in range(dice.choice([1, 2, 5, 16, 17, 40]))]
        request = engine.add(prompt, model, max_tokens=TOKENS, stop_token_ids=(), logprobs=0)
        asked.append((model, prompt, request))
        if dice.random() < 0.15:
            engine.abort(dice.choice(asked)[2].id)
        for _ in range(dice.randrange(4)):
            engine.step()
    finish(engine)
    for model, prompt, request in asked:
        if request.finish == "abort":
            continue
        assert request.finish == "length"
        logprobs = reference.logprobs([*prompt, *request.tokens[:-1]], adapters.get(model))[len(prompt) - 1 :]
        assert request.tokens == logprobs.argmax(dim=-1).tolist(), (model, len(prompt))
        chosen = logprobs[torch.arange(TOKENS), request.tokens]
        assert float((chosen - torch.tensor(request.logprobs)).abs().max()) < 1e-3
    stats = engine.stats()
    assert stats.pages_sequences == 0
    assert stats.pages_free + stats.pages_adapters + stats.pages_cached == stats.pages_total
    engine.close()


@pytest.mark.parametrize("seed", range(4))
def test_shared_beginnings_agree_with_the_reference(base: Path, adapters: dict[str, Path], seed: int) -> None:
    """Prompts that agree for whole pages or part of one, on the same and on other adapters, in a pool that evicts."""
    dice, reference = random.Random(100 + seed), oracle(base)
    names = [*dice.sample(sorted(adapters), 3), ""]
    engine = make(
        base,
        {name: adapters[name] for name in names if name},
        max_num_seqs=4,
        max_num_batched_tokens=dice.choice([16, 512]),
        kv_cache_memory_bytes=1 << 20,
        block_size=dice.choice([4, 16]),
    )
    stems = [[dice.randrange(3, 250) for _ in range(70)] for _ in range(2)]
    asked: list[tuple[str, list[int], Request]] = []
    for _ in range(24):
        if asked and dice.random() < 0.3:  # a conversation that goes on
            model, prompt, before = dice.choice(asked)
            prompt = [*prompt, *before.tokens, dice.randrange(3, 250)]
        else:
            model = dice.choice(names)
            prompt = [*dice.choice(stems)[: dice.randint(1, 70)], *(dice.randrange(3, 250) for _ in range(3))]
        asked.append((model, prompt, engine.add(prompt, model, max_tokens=8, stop_token_ids=(), logprobs=0)))
        for _ in range(dice.randrange(12)):
            engine.step()
            assert engine.core.check() is None
    finish(engine)
    assert engine.core.stats()["prefix_tokens"] > 200
    for model, prompt, request in asked:
        logprobs = reference.logprobs([*prompt, *request.tokens[:-1]], adapters.get(model))[len(prompt) - 1 :]
        assert request.tokens == logprobs.argmax(dim=-1).tolist(), (model, len(prompt))
        chosen = logprobs[torch.arange(8), request.tokens]
        assert float((chosen - torch.tensor(request.logprobs)).abs().max()) < 1e-3
    engine.close()


def test_a_quantised_file_computes_close_to_its_dequantised_weights(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    """8-bit activations along the fp32 path's own tokens: 0.1 nats off in the mean, on rows of only 64 weights."""
    quantised = make_tiny_gguf(base, tmp_path / "q.gguf", "Q4_1", embed="Q8_0")
    exact, fast = make(quantised, adapters), make(quantised, adapters, dtype="auto", dequantize=False)
    off, same, count = [], 0, 0
    for model in ("r16", "r100", ""):
        prompt = [40, 50, 60, 70, 80]
        first = exact.add(prompt, model, max_tokens=16, stop_token_ids=(), logprobs=0)
        finish(exact)
        for length in range(16):
            follow = fast.add(prompt + first.tokens[:length], model, max_tokens=1, stop_token_ids=(), logprobs=0)
            finish(fast)
            count += 1
            if follow.tokens[0] == first.tokens[length]:
                same += 1
                off.append(abs(follow.logprobs[0] - first.logprobs[length]))
    assert same / count > 0.8
    assert sum(off) / len(off) < 0.1


def test_a_failing_step_ends_its_own_requests_only(
    base: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make(base, adapters)
    hurt = engine.add([5, 6, 7], "r8", max_tokens=4, stop_token_ids=())
    engine.step()

    def broken(plan: object) -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL):
        patch.setattr(engine.worker, "run", broken)
        while hurt.finish is None:
            engine.step()
    assert hurt.finish == "error" and hurt.error
    assert engine.core.check() is None
    well = engine.add([5, 6, 7], "r8", max_tokens=4, stop_token_ids=())
    finish(engine)
    assert well.finish == "length" and len(well.tokens) == 4


def test_a_slot_with_another_generation_poisons_its_own_row_only(base: Path, adapters: dict[str, Path]) -> None:
    """The kernels compare the plan's tag with the slot's: a slip in the table is an error, never another's weights."""
    engine = make(base, adapters)
    # so long that neither ends while the other's adapter is still on its way
    victim = engine.add([5, 6, 7], "r16", max_tokens=900, stop_token_ids=())
    other = engine.add([5, 6, 7], "r8", max_tokens=900, stop_token_ids=())
    while not (victim.tokens and other.tokens):
        engine.step()
    slot = next(
        i for i in range(8) if engine.worker.table.tag(i) == int(engine.adapters.names["r16"].generation[-8:], 16)
    )
    engine.worker.table.clear(slot)
    tokens = len(other.tokens)
    for _ in range(3):
        engine.step()
    assert victim.finish == "error" and len(victim.tokens) < 900
    assert other.finish is None and len(other.tokens) == tokens + 3
    engine.abort(other.id)
    finish(engine)


def test_a_request_keeps_its_generation_through_an_unload(base: Path, adapters: dict[str, Path]) -> None:
    engine = make(base, adapters)
    alone = engine.add([9, 8, 7], "r9", max_tokens=10, stop_token_ids=())
    finish(engine)
    running = engine.add([9, 8, 7], "r9", max_tokens=10, stop_token_ids=())
    while not running.tokens:
        engine.step()
    engine.unload_adapter("r9")
    with pytest.raises(NotFound, match="r9"):
        engine.add([9], "r9")
    finish(engine)
    assert running.tokens == alone.tokens
    assert len(engine.stats().adapters) == len(adapters) - 1, "drained, the generation is forgotten"
    assert engine.stats().pages_adapters == 0, "and its pages are free"


def test_a_reloaded_adapter_answers_as_if_it_were_new(base: Path, tmp_path: Path) -> None:
    """The same name, other weights, a prompt that is cached for the old ones."""
    config = open_model(base).config
    v1, v2 = (make_adapter(tmp_path / f"v{seed}", config, modules=list(MODULES), seed=seed) for seed in (1, 2))
    prompt = list(range(3, 43))

    def ask(engine: Engine) -> tuple[list[int], int]:
        before = engine.core.stats()["prefix_tokens"]
        request = engine.add(prompt, "x", max_tokens=8, stop_token_ids=())
        finish(engine)
        return request.tokens, engine.core.stats()["prefix_tokens"] - before

    engine, fresh = make(base, {"x": v1}), make(base, {"x": v2})
    old, new = ask(engine)[0], ask(fresh)[0]
    assert old != new and ask(engine) == (old, 39)
    running = engine.add(prompt, "x", max_tokens=8, stop_token_ids=())
    engine.step()
    engine.load_adapter("x", str(v2))
    assert ask(engine) == (new, 0) and ask(engine) == (new, 39)
    assert running.tokens == old
    engine.unload_adapter("x")
    engine.load_adapter("x", str(v1))
    assert ask(engine) == (old, 0), "what was cached went with the generation"
    engine.close()
    fresh.close()


def test_the_longest_prompts_at_the_highest_rank(base: Path, tmp_path: Path) -> None:
    """The longest prompts there may be, on adapters of the highest rank on all modules, at once."""
    config, reference = open_model(base).config, oracle(base)
    big = {f"r{seed}": make_adapter(tmp_path / f"r{seed}", config, rank=256, seed=seed) for seed in range(3)}
    engine = make(
        base, big, max_model_len=512, max_num_batched_tokens=64, max_num_seqs=4, kv_cache_memory_bytes=16 << 20
    )
    model = engine.worker.model
    arrays = {name: value for name, value in vars(model).items() if isinstance(value, np.ndarray)}
    assert len(arrays) >= 9
    dice = random.Random(11)
    cases = [(name, [dice.randrange(3, 250) for _ in range(508)]) for name in [*big, ""]]
    requests = [engine.add(prompt, name, max_tokens=4, stop_token_ids=(), logprobs=0) for name, prompt in cases]
    while engine.step():
        assert engine.core.check() is None
        assert engine.plan.array[2] <= 64, "tokens of a step"
    assert all(getattr(model, name) is array for name, array in arrays.items()), "the work space is that of the start"
    for (name, prompt), request in zip(cases, requests, strict=True):
        logprobs = reference.logprobs([*prompt, *request.tokens[:-1]], big.get(name))[len(prompt) - 1 :]
        assert request.tokens == logprobs.argmax(dim=-1).tolist(), name
    engine.close()


def test_refusals_name_the_field_and_change_nothing(base: Path, adapters: dict[str, Path]) -> None:
    engine = make(base, adapters, max_model_len=32)
    before = engine.dump().splitlines()[1:]
    for arguments, code in [
        (([], "r8"), "empty_prompt"),
        (([1] * 40, "r8"), "sequence_too_long"),
        (([1 << 20], "r8"), "token_out_of_range"),
        (([-1], "r8"), "token_out_of_range"),
        (([1 << 40], "r8"), "token_out_of_range"),
        (([1.5], "r8"), "token_out_of_range"),
        (([True], "r8"), "token_out_of_range"),
    ]:
        with pytest.raises(InvalidRequest) as refusal:
            engine.add(*arguments, max_tokens=4)
        assert refusal.value.code == code
    for field, values in {
        "temperature": ("hot", float("nan"), float("inf"), -1, True),
        "top_p": (0, 1.5, None),
        "top_k": (-5, 1.0),
        "min_p": (7, -0.1),
        "seed": (-1, 1 << 64, 0.5),
        "max_tokens": (-1, 0, 1 << 40, "4"),
        "stop_token_ids": ((-1,), ("a",)),
    }.items():
        for value in values:
            with pytest.raises(InvalidRequest) as refusal:
                engine.add([1], "r8", **{"max_tokens": 4, field: value})
            assert refusal.value.param == field and repr(value).strip("(,)") in str(refusal.value)
    with pytest.raises(NotFound):
        engine.add([1], "R8")
    assert engine.dump().splitlines()[1:] == before


def test_the_end_tells_how_often_a_request_was_preempted(base: Path) -> None:
    """Two that grow in a pool which holds hardly more than one of them."""
    roomy = Engine(str(base), enable_prefix_caching=False)
    bytes_of_page = roomy.model_info.page_bytes
    engine = Engine(str(base), enable_prefix_caching=False, kv_cache_memory_bytes=10 * bytes_of_page)
    for one in (roomy, engine):
        for _ in range(2):
            one.add([9, 8, 7], max_tokens=110, stop_token_ids=())
        told = []
        while step := one.step():
            told += [end.waits.preemptions for end in step.finished if end.waits is not None]
        assert len(told) == 2 and sum(told) == one.stats().preemptions
        assert (sum(told) > 0) is (one is engine)


def test_only_so_many_adapters_are_registered(base: Path, tmp_path: Path) -> None:
    config = open_model(base).config
    paths = [make_adapter(tmp_path / str(seed), config, rank=4, modules=["q_proj"], seed=seed) for seed in range(3)]
    engine = Engine(str(base), max_cpu_loras=2)
    engine.load_adapter("a", str(paths[0]))
    engine.load_adapter("b", str(paths[1]))
    engine.load_adapter("again", str(paths[1]))  # the same content is there once
    for name in ("c", "a"):
        with pytest.raises(Unavailable, match="2 adapters are registered, at most 2") as refusal:
            engine.load_adapter(name, str(paths[2]))
        assert refusal.value.code == "adapters_full"
    engine.unload_adapter("a")
    engine.step()
    engine.load_adapter("c", str(paths[2]))


def test_each_refusal_of_the_core_has_an_error() -> None:
    assert set(KINDS) == set(_core.REFUSAL_CODES)


def test_more_requests_than_the_core_explains_may_end_in_one_step(base: Path) -> None:
    engine = make(base, {}, max_num_seqs=1300, max_num_batched_tokens=1300)
    asked = [engine.add([3 + index % 200, index % 7], max_tokens=1, stop_token_ids=()) for index in range(1300)]
    finish(engine)
    assert all(request.finish == "length" for request in asked)


def test_seeded_sampling_depends_on_the_request_alone(base: Path, adapters: dict[str, Path]) -> None:
    engine = make(base, adapters, max_num_batched_tokens=24)
    drawn = []
    for neighbours in (0, 3, 9):
        request = engine.add([11, 12, 13], "r31", max_tokens=16, stop_token_ids=(), temperature=0.9, top_p=0.9, seed=42)
        for index in range(neighbours):
            engine.add([index + 3] * 9, "r2" if index % 2 else "", max_tokens=12, temperature=1.0, seed=index)
        finish(engine)
        drawn.append(request.tokens)
    small = make(base, adapters, kv_cache_memory_bytes=190_000, enable_prefix_caching=False)
    for seed in (0, 1):  # neighbours with seeds of their own, and without
        own = [{"seed": index} if seed else {} for index in range(8)]
        others = [small.add([index + 3] * 40, "r2", max_tokens=30, temperature=1.0, **own[index]) for index in range(8)]
        request = small.add([11, 12, 13], "r31", max_tokens=16, stop_token_ids=(), temperature=0.9, top_p=0.9, seed=42)
        finish(small)
        assert all(other.finish for other in others)
        drawn.append(request.tokens)
    assert small.stats().preemptions > 0, "the pool was meant to be too small"
    assert all(tokens == drawn[0] for tokens in drawn)


def test_a_quantised_base_alone_needs_no_torch(base: Path, tmp_path: Path) -> None:
    """Importing it is most of a start's time."""
    path = make_tiny_gguf(base, tmp_path / "q.gguf", "Q8_0")
    script = f"""
import sys
from lorad import Engine
engine = Engine({str(path)!r})
request = engine.add([5, 6, 7], max_tokens=3, stop_token_ids=())
while engine.core.has_work():
    engine.step()
assert len(request.tokens) == 3
assert "torch" not in sys.modules, "torch was imported"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_pin_without_room_names_its_option(base: Path, adapters: dict[str, Path]) -> None:
    engine = make(base, {"r9": adapters["r9"]})
    with pytest.raises(Overloaded, match="at most 0 may be \\(--max-pinned-bytes\\)") as refused:
        engine.pin_adapter(engine.adapters.names["r9"].generation, True)
    assert refused.value.code == "pins_full"
    engine.close()


@pytest.mark.parametrize("how", ["prewarm", "pin"])
def test_an_idle_engine_pages_in_what_is_wished_for(base: Path, adapters: dict[str, Path], how: str) -> None:
    engine = make(base, {"r9": adapters["r9"]}, max_pinned_bytes=2 << 20)
    generation = engine.adapters.names["r9"].generation
    if how == "pin":
        engine.pin_adapter(generation, True)
    else:
        engine.prewarm_adapter(generation)
    assert engine.has_work()
    while engine.step():
        pass
    assert engine.stats().adapters[generation].state == "hot" and not engine.has_work()
    engine.close()
