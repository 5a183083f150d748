"""Combinations of adapters by `Engine.add`: the numbers against PEFT's `cat` and merged weights, copies, leaks."""

from __future__ import annotations

import gc
import os
import random
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from lorad import Engine, Request
from lorad.adapters.combine.copies import Copies, Copy
from lorad.adapters.combine.weighted import PARTS_MAX, Term, generation_of
from lorad.adapters.image import AdapterImage, build_image
from lorad.adapters.load import load_adapter
from lorad.adapters.unpack import unpack
from lorad.demo.tenant import tenants
from lorad.errors import InvalidRequest, LoradError, NotFound, Overloaded
from lorad.models.config import MODULES
from lorad.models.open import open_model
from lorad.models.values import values
from make_adapter import make_adapter
from oracle import Oracle, load_reference, oracle
from tiny import make_tiny
from trained_adapter import train

TOKENS = 16
TOLERANCE = 1e-3
Weights = dict[str, float]


class Tiny(NamedTuple):
    """A base and adapters of several ranks, scales, modules and number types."""

    base: Path
    adapters: dict[str, Path]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    base = make_tiny(folder / "base")
    config, dice = open_model(base).config, random.Random(11)
    types = {1: torch.bfloat16, 5: torch.bfloat16, 8: torch.float16, 17: torch.float32, 40: torch.bfloat16}
    adapters = {
        f"r{rank}": make_adapter(
            folder / f"r{rank}",
            config,
            rank=rank,
            alpha=dice.choice([4, 9.5, 32]),
            modules=sorted(dice.sample(MODULES, dice.randint(2, 7)), key=MODULES.index),
            rslora=rank == 8,  # PEFT takes the first one's for the combination, too: none is first below
            seed=rank,
            dtype=dtype,
        )
        for rank, dtype in types.items()
    }
    some = make_adapter(folder / "some", config, rank=6, modules=["v_proj", "up_proj"], layers=[0, 2], seed=6)
    return Tiny(base, adapters | {"some": some})


def make(tiny: Tiny, **options: Any) -> Engine:
    plain = {"dtype": "float32", "kv_cache_memory_bytes": 8 << 20, "max_num_seqs": 16, "max_combined_adapters": 16}
    engine = Engine(str(tiny.base), **(plain | options))
    for name, path in tiny.adapters.items():
        engine.load_adapter(name, str(path))
    return engine


def finish(engine: Engine) -> None:
    while engine.step():
        assert engine.core.check() is None


def ask(engine: Engine, model: str | Weights, prompt: Sequence[int] = (70, 71, 72), tokens: int = TOKENS) -> Request:
    asked: dict[str, Any] = {"adapters": model} if isinstance(model, dict) else {"model": model}
    return engine.add(list(prompt), max_tokens=tokens, stop_token_ids=(), logprobs=0, **asked)


def by_peft(tiny: Tiny, weights: Weights) -> Any:
    """PEFT's own combination on a base of its own."""
    from peft import PeftModel

    names = list(weights)
    model = PeftModel.from_pretrained(load_reference(tiny.base), tiny.adapters[names[0]], adapter_name=names[0])
    for name in names[1:]:
        model.load_adapter(tiny.adapters[name], adapter_name=name)
    model.add_weighted_adapter(names, list(weights.values()), "made", combination_type="cat")
    model.set_adapter("made")
    return model.eval()


def merged(tiny: Tiny, weights: Weights) -> Any:
    """The base with the weighted differences that merging each adapter makes, whatever its parts are."""
    from peft import PeftModel

    base = load_reference(tiny.base)
    plain, total = base.state_dict(), {key: tensor.double() for key, tensor in base.state_dict().items()}
    for name, weight in weights.items():
        one = PeftModel.from_pretrained(load_reference(tiny.base), tiny.adapters[name]).merge_and_unload()
        for key, tensor in one.state_dict().items():
            total[key] = total[key] + weight * (tensor.double() - plain[key].double())
    base.load_state_dict({key: tensor.float() for key, tensor in total.items()})
    return base.eval()


def agrees(reference: Oracle, request: Request) -> None:
    """The reference's greedy tokens and log-probabilities."""
    wanted = reference.logprobs([*request.prompt, *request.tokens[:-1]])[len(request.prompt) - 1 :]
    assert request.tokens == wanted.argmax(dim=-1).tolist(), repr(request)
    off = (wanted.max(dim=-1).values - torch.tensor(request.logprobs)).abs().max()
    assert off < TOLERANCE, (repr(request), float(off))


COMBINATIONS: list[Weights] = [
    {"r1": 0.7, "r8": 0.3},
    {"r5": 1.0, "r40": -0.6, "r17": 0.25},
    {"r17": 0.5, "r1": 2.0, "r5": -1.0, "r8": 0.4, "r40": 0.125},
    {"some": 1.5, "r1": 0.2},
]


@pytest.mark.parametrize("batch", [24, 512], ids=["chunked", "whole"])
def test_a_mixed_batch_agrees_with_peft(tiny: Tiny, batch: int) -> None:
    """Combinations, their parts alone and the base at once, prompts of many lengths."""
    engine, dice = make(tiny, max_num_batched_tokens=batch), random.Random(batch)
    models: list[str | Weights] = [*COMBINATIONS, *tiny.adapters, "", *COMBINATIONS]
    dice.shuffle(models)
    requests = [
        (model, ask(engine, model, [dice.randrange(3, 250) for _ in range(dice.choice([1, 2, 15, 33, 90]))]))
        for model in models
    ]
    finish(engine)
    # PEFT's own wants an adapter in every layer.
    references = {
        repr(weights): Oracle((merged if "some" in weights else by_peft)(tiny, weights)) for weights in COMBINATIONS
    }
    for model, request in requests:
        if isinstance(model, dict):
            agrees(references[repr(model)], request)
            continue
        wanted = oracle(tiny.base).logprobs([*request.prompt, *request.tokens[:-1]], tiny.adapters.get(model))
        assert request.tokens == wanted[len(request.prompt) - 1 :].argmax(dim=-1).tolist(), model
    engine.close()


@pytest.mark.slow
def test_real_adapters_of_the_embedded_base(smollm2_gguf: Path) -> None:
    from peft import PeftModel

    paths, weights = {tenant.name: tenant.path for tenant in tenants()}, {"devil": 0.6, "wordnet": 0.5, "kjv": -0.2}
    options = {"dtype": "float32", "dequantize": True, "max_model_len": 512, "max_combined_adapters": 1}
    engine = make(Tiny(smollm2_gguf, paths), kv_cache_memory_bytes=256 << 20, **options)
    prompt = engine.text_model.chat([{"role": "user", "content": "Define: lawyer"}])
    models: list[str | Weights] = [weights, "devil", "", "wordnet"]
    requests = [ask(engine, model, prompt) for model in models]
    finish(engine)
    reference = PeftModel.from_pretrained(load_reference(smollm2_gguf), paths["devil"], adapter_name="devil")
    for name in ("wordnet", "kjv"):
        reference.load_adapter(paths[name], adapter_name=name)
    reference.add_weighted_adapter(list(weights), list(weights.values()), "made", combination_type="cat")
    reference.set_adapter("made")
    agrees(Oracle(reference.eval()), requests[0])
    others = {(*request.tokens, *(round(value, 1) for value in request.logprobs)) for request in requests}
    assert len(others) == len(models), "far beyond the tolerance from the base and from its parts"
    engine.close()


@pytest.mark.parametrize("weights", [{"r5": 0.6}, {"r40": -1.5}, {"r8": 10.0}], ids=repr)
def test_one_adapter_at_another_weight(tiny: Tiny, weights: Weights) -> None:
    """PEFT's `cat` of one is its `linear`, whose numbers are the same."""
    engine = make(tiny)
    request = ask(engine, weights)
    finish(engine)
    agrees(Oracle(merged(tiny, weights)), request)
    engine.close()


def test_one_adapter_at_weight_one_is_that_adapter(tiny: Tiny) -> None:
    engine = make(tiny)
    prompt = list(range(70, 110))
    for name in tiny.adapters:
        alone = ask(engine, name, prompt)
        finish(engine)
        combined = ask(engine, {name: 1}, prompt)
        finish(engine)
        assert (combined.tokens, combined.logprobs) == (alone.tokens, alone.logprobs)
        told = engine.explain(combined.id)
        assert told is not None and told["cached_tokens"] > 0, "it's the same generation, no copy of it"
    assert len(engine.stats().adapters) == len(tiny.adapters)
    engine.close()


TRAINED: dict[str, dict[str, Any]] = {
    "biases": {"target_modules": ["q_proj", "up_proj"], "bias": "all"},
    "bias of B": {"target_modules": ["q_proj", "v_proj"], "lora_bias": True, "r": 3},
    "embedding and head": {"target_modules": ["embed_tokens", "lm_head", "o_proj"], "r": 5},
    "whole": {"target_modules": ["k_proj"], "modules_to_save": ["embed_tokens"]},
    "tokens": {"target_modules": ["down_proj"], "trainable_token_indices": [70, 5, 101, 102]},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("trained")
    base = make_tiny(folder / "base", "qwen2", tie_word_embeddings=False)
    adapters = {
        name: train(base, folder / name, seed=seed, **options) for seed, (name, options) in enumerate(TRAINED.items())
    }
    adapters["dora"] = train(base, folder / "dora", target_modules=["q_proj"], use_dora=True)
    return Tiny(base, adapters)


@pytest.mark.parametrize(
    "weights",
    [
        {"biases": 0.5, "bias of B": 0.75},
        {"embedding and head": 0.8, "bias of B": -0.5},
        {"whole": 0.5, "tokens": 0.5},
        {name: 0.3 for name in TRAINED},
    ],
    ids=repr,
)
def test_what_was_trained_beside_pairs_adds_up_too(trained: Tiny, weights: Weights) -> None:
    engine = make(trained)
    request = ask(engine, weights, [70, 5, 101, 9, 200, 30])
    plain = ask(engine, "", [70, 5, 101, 9, 200, 30])
    finish(engine)
    assert request.tokens != plain.tokens
    agrees(Oracle(merged(trained, weights)), request)
    engine.close()


def test_pages_give_back_every_part(trained: Tiny, tiny: Tiny) -> None:
    for case in (tiny, trained):
        weights = open_model(case.base)
        for name, path in case.adapters.items():
            checked = load_adapter(
                name, path, weights.config, weights.digest, base=lambda key, weights=weights: values(weights, key)
            )
            found = list(unpack(build_image(checked, 1 << 12), weights.config))
            for one, other in zip(checked.modules, found, strict=True):
                assert (one.layer, one.module, one.rank) == (other.layer, other.module, other.rank)
                assert np.float32(one.scale) == other.scale
                for ours, theirs in zip(one[4:], other[4:], strict=True):
                    assert (ours is None) == (theirs is None)
                    assert ours is None or (torch.equal(ours, theirs) and ours.dtype == theirs.dtype)


def test_number_types_are_kept_where_they_hold_the_sum(tiny: Tiny) -> None:
    engine = make(tiny)

    def element(weights: Weights) -> str:
        terms = [Term(name, engine.adapters.named(name).generation, weight) for name, weight in weights.items()]
        return engine.prepare_combination(engine.combination_parts(terms)).image.layout.element

    assert element({"r1": 0.3}) == "bf16", "a single one's weight goes into the scale"
    assert element({"r1": 0.7, "r40": 0.3}) == "f32"
    assert element({"r1": 1.0, "r8": 1.0}) == "f32", "of two types"
    engine.close()


def refusal(engine: Engine, adapters: Any, model: str = "") -> LoradError:
    with pytest.raises(LoradError) as refused:
        engine.add([70, 71], model, adapters=adapters)
    assert len(engine._combined) == 0 and not engine.has_work()
    return refused.value


def test_what_is_refused(tiny: Tiny, trained: Tiny) -> None:
    engine = make(tiny)
    for weights in (0, 0.0, 0.0009, 10.5, -11, float("nan"), float("inf"), -float("inf"), "1", True, None, [1]):
        error = refusal(engine, {"r1": 1, "r8": weights})
        assert error.code == "combination_weight" and error.param == "adapters"
        assert "adapters[1].weight: 0.001 to 10" in error.message, error.message
    error = refusal(engine, {})
    assert error.code == "combination_parts" and f"1 to {PARTS_MAX}" in error.message
    error = refusal(engine, {str(number): 1 for number in range(PARTS_MAX + 1)})
    assert error.code == "combination_parts" and f"got {PARTS_MAX + 1}" in error.message
    error = refusal(engine, ["r1", "r8"])
    assert error.code == "field_type" and error.param == "adapters"
    error = refusal(engine, {"r1": 1, "nobody": 1})
    assert isinstance(error, NotFound) and error.code == "model_not_found" and "nobody" in error.message
    assert error.param == "adapters"
    error = refusal(engine, {"r1": 1}, model="r8")
    assert error.code == "combination_model" and error.param == "model" and "r8" in error.message
    engine.close()
    engine = make(trained)
    error = refusal(engine, {"dora": 0.5, "tokens": 0.5})
    assert error.code == "combination_dora" and "'dora'" in error.message
    assert error.message == refusal(engine, {"dora": 0.5}).message
    ask(engine, {"dora": 1.0})
    finish(engine)
    engine.close()


def test_ranks_add_up_to_the_limit_at_most(tiny: Tiny, tmp_path: Path) -> None:
    config, engine = open_model(tiny.base).config, make(tiny, max_lora_rank=48)
    for rank in (18, 19, 30):
        folder = make_adapter(tmp_path / str(rank), config, rank=rank, modules=["q_proj", f"{'kvo'[rank % 3]}_proj"])
        engine.load_adapter(str(rank), str(folder))
    error = refusal(engine, {"19": 1, "30": 0.5})
    assert error.code == "combination_rank_limit" and error.param == "adapters"
    assert "49 in layer 0, q_proj; at most 48" in error.message, error.message
    ask(engine, {"18": 1, "30": 0.5})
    finish(engine)
    engine.close()


def test_values_beyond_f32_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    config = open_model(tiny.base).config
    huge = make_adapter(tmp_path / "huge", config, rank=2, alpha=3e29, modules=["q_proj"])
    engine = make(tiny)
    engine.load_adapter("huge", str(huge))
    for weights in ({"huge": 10.0}, {"huge": -9.0, "r1": 1.0}):
        error = refusal(engine, weights)
        assert isinstance(error, InvalidRequest) and error.code == "combination_range" and "huge" in error.message
    engine.close()


def test_they_are_off_by_default(tiny: Tiny) -> None:
    engine = make(tiny, max_combined_adapters=0)
    error = refusal(engine, {"r1": 0.5})
    assert error.code == "combinations_off" and "--max-combined-adapters" in error.message
    engine.close()


def test_generations_tell_combinations_apart() -> None:
    def of(*terms: tuple[str, str, float]) -> str:
        return generation_of([Term(*term) for term in terms])

    one, two = ("a", "1" * 32, 0.5), ("b", "2" * 32, 0.25)
    first = of(one, two)
    assert len(first) == 32 and first == of(two, one), "their order has no say"
    assert first == of(("x", "1" * 32, 0.5), two), "nor have names"
    others = {of(one), of(one, ("b", "2" * 32, 0.26)), of(("a", "1" * 32, 0.25), ("b", "2" * 32, 0.5)), of(two)}
    assert len(others | {first}) == 5


def test_the_same_combination_is_one_copy_and_prefixes_are_its_own(tiny: Tiny) -> None:
    engine, prompt = make(tiny), list(range(70, 170))
    first = ask(engine, {"r1": 0.7, "r8": 0.3}, prompt)
    finish(engine)
    again = ask(engine, {"r8": 0.3, "r1": 0.7}, prompt)
    other = ask(engine, {"r1": 0.7, "r8": 0.31}, prompt)
    finish(engine)
    assert again.tokens == first.tokens
    cached = [(engine.explain(request.id) or {})["cached_tokens"] for request in (first, again, other)]
    assert cached[0] == 0 and cached[1] > 0 and cached[2] == 0
    assert len(engine._combined) == 2 and len(engine.stats().adapters) == len(tiny.adapters) + 2
    engine.close()


def test_a_reloaded_part_is_another_combination_and_requests_keep_theirs(tiny: Tiny) -> None:
    engine, weights = make(tiny), {"r5": 0.5, "r17": 0.5}
    before = ask(engine, weights, tokens=40)
    for _ in range(5):
        engine.step()
    engine.load_adapter("r5", str(tiny.adapters["r40"]))
    after = ask(engine, weights, tokens=40)
    finish(engine)
    agrees(Oracle(by_peft(tiny, weights)), before)
    agrees(Oracle(by_peft(tiny, {"r40": 0.5, "r17": 0.5})), after)
    assert len(engine._combined) == 1 and len(engine.stats().adapters) == len(tiny.adapters), "r5 and its copy are gone"
    engine.load_adapter("r5", str(tiny.adapters["r40"]))
    assert len(engine._combined) == 1, "the same content again changes nothing"
    engine.close()


def test_an_unloaded_part_takes_its_combinations_along_when_they_are_done(tiny: Tiny) -> None:
    engine = make(tiny)
    running = ask(engine, {"r5": 0.5, "r17": 0.5})
    kept = ask(engine, {"r1": 0.5, "r17": 0.5})
    engine.step()
    engine.unload_adapter("r5")
    with pytest.raises(NotFound):
        ask(engine, {"r5": 0.5, "r17": 0.5})
    finish(engine)
    agrees(Oracle(by_peft(tiny, {"r5": 0.5, "r17": 0.5})), running)
    agrees(Oracle(by_peft(tiny, {"r1": 0.5, "r17": 0.5})), kept)
    assert len(engine._combined) == 1 and len(engine.stats().adapters) == len(tiny.adapters) - 1 + 1
    engine.close()


def test_idle_copies_make_way_and_nothing_is_left_of_them(tiny: Tiny) -> None:
    engine = make(tiny, max_combined_adapters=2, kv_cache_memory_bytes=2 << 20)
    images: list[weakref.ref[AdapterImage]] = []
    descriptors: set[int] = set()
    for number in range(12):
        ask(engine, {"r1": 0.5 + number / 10, "r5": 0.5}, tokens=2)
        finish(engine)
        (newest,) = list(engine.worker._adapters.values())[-1:]
        images.append(weakref.ref(newest.image))
        assert len(engine._combined) <= 2 and len(engine.stats().adapters) <= len(tiny.adapters) + 2
        del newest
        gc.collect()
        descriptors.add(len(os.listdir("/proc/self/fd")) - len(engine._combined))
    assert sum(image() is not None for image in images) == 2
    assert len(descriptors) == 1, "each copy's file is closed"
    for name in tiny.adapters:
        engine.unload_adapter(name)
    finish(engine)
    assert engine.step() is None
    assert not engine.stats().adapters and engine.stats().pages_adapters == 0 and not engine.worker._adapters
    engine.close()


def test_copies_at_work_stay(tiny: Tiny) -> None:
    engine = make(tiny, max_combined_adapters=2)
    running = [ask(engine, {"r1": weight, "r5": 0.5}) for weight in (0.5, 0.6)]
    engine.step()
    with pytest.raises(Overloaded) as refused:
        ask(engine, {"r1": 0.7, "r5": 0.5})
    assert refused.value.code == "combinations_full" and "2 combinations" in refused.value.message
    finish(engine)
    assert {request.finish for request in running} == {"length"}
    ask(engine, {"r1": 0.7, "r5": 0.5})
    finish(engine)
    engine.close()


def test_who_was_used_longest_ago_goes_first() -> None:
    copies: Copies[Copy] = Copies(2)
    one, two, three = (Copy(name, {"a": name}) for name in ("1", "2", "3"))
    for copy in (one, two):
        assert copies.make_room(lambda copy: True) is None
        copies.add(copy)
    assert copies.find("1") is one and copies.find("3") is None
    assert copies.make_room(lambda copy: True) is two
    copies.add(three)
    assert copies.make_room(lambda copy: copy is three) is three
    assert list(copies.take_stale("a", "1")) == [] and list(copies.take_stale("b", None)) == []
    assert list(copies.take_stale("a", None)) == [one] and len(copies) == 0
