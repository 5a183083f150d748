"""What callers of an engine may ask for: every bound of core and worker is met by a refusal, in front of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lorad import Engine, _core
from lorad.errors import AdapterRejected, InvalidRequest, Unavailable
from lorad.models.config import MODULES
from lorad.models.open import open_model
from make_adapter import make_adapter
from tiny import VOCAB, make_tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_adapter(tmp_path_factory.mktemp("adapter"), open_model(base).config, modules=list(MODULES)))


@pytest.fixture
def engine(base: Path) -> Iterator[Engine]:
    made = Engine(str(base), dtype="float32", kv_cache_memory_bytes=1 << 20)
    yield made
    made.close()


def finish(engine: Engine) -> None:
    while engine.step():
        pass


def test_a_wish_that_the_worker_cant_meet_harms_nobody_else(engine: Engine) -> None:
    innocent = engine.add([5, 6, 7], max_tokens=4, stop_token_ids=())
    with pytest.raises(InvalidRequest) as refusal:
        engine.add([5, 6, 7], max_tokens=4, logprobs=_core.BEST_MAX + 1)
    assert (refusal.value.code, refusal.value.param) == ("sampling_range", "logprobs")
    assert str(refusal.value) == f"logprobs: -1 to {_core.BEST_MAX}, got {_core.BEST_MAX + 1}"
    most = engine.add([5, 6, 7], max_tokens=4, logprobs=_core.BEST_MAX, stop_token_ids=())
    finish(engine)
    assert innocent.finish == most.finish == "length" and len(most.logprobs) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 10**400),
        ("temperature", 1e308),
        ("temperature", "1"),
        ("top_p", 10**400),
        ("min_p", np.float64("nan")),
        ("seed", 1 << 64),
        ("seed", np.bool_(True)),
        ("top_k", 1 << 31),
        ("logprobs", -2),
        ("max_tokens", None),
        ("stop_token_ids", None),
        ("stop_token_ids", 3),
        ("stop_token_ids", {3}),
        ("stop_token_ids", (1 << 31,)),
        ("stop_token_ids", (3, True)),
    ],
)
def test_sampling_out_of_range_is_refused_by_field(engine: Engine, field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        engine.add([5, 6, 7], **{"max_tokens": 2, field: value})  # type: ignore[arg-type]
    assert refusal.value.param == field and str(refusal.value).startswith(f"{field}: ")
    assert not engine.has_work()


@pytest.mark.parametrize(
    "prompt",
    [
        [5, True],
        np.array([True]),
        np.array([[1, 2]]),
        np.array(3),
        [1.0],
        np.array([1.0]),
        [None],
        {3},
        {1: 2},
        (token for token in (1, 2)),
        b"ab",
        None,
        5,
        [VOCAB],
        [-1],
        [2**64],
        [2**63, -1],
    ],
    ids=str,
)
def test_a_prompt_is_a_list_of_whole_numbers(engine: Engine, prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        engine.add(prompt, max_tokens=1)
    assert (refusal.value.code, refusal.value.param) == ("token_out_of_range", "prompt")
    assert f"below {VOCAB}" in str(refusal.value) and len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    "prompt",
    [[4, 7], (4, 7), range(4, 8, 3), [np.int32(4), np.uint64(7)], np.array([4, 7], dtype=np.uint8), np.array([4, 7])],
    ids=str,
)
def test_whole_numbers_of_any_kind_are_tokens(engine: Engine, prompt: Any) -> None:
    asked = engine.add(
        prompt, max_tokens=np.int64(3), temperature=np.float32(0), seed=np.uint8(1), stop_token_ids=[np.int16(9)]
    )
    assert asked.prompt == [4, 7] and all(type(token) is int for token in asked.prompt)
    finish(engine)
    assert asked.finish in ("length", "stop")


def test_a_number_too_long_to_be_written_is_refused_shortly(engine: Engine) -> None:
    for asked in ({"prompt": [10**5000]}, {"prompt": [5], "temperature": 10**5000}):
        with pytest.raises(InvalidRequest, match="a whole number of 16610 bits"):
            engine.add(**asked)  # type: ignore[arg-type]


def test_the_largest_temperature_goes_without_a_warning(engine: Engine) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = engine.add([5], max_tokens=2, temperature=float(np.finfo(np.float32).max), stop_token_ids=())
        finish(engine)
    assert asked.finish == "length"


@pytest.mark.parametrize("number", [-1, 1 << 64, "x", True, 1.0, None])
def test_a_request_has_a_number(engine: Engine, number: Any) -> None:
    for ask in (engine.abort, engine.explain):
        with pytest.raises(InvalidRequest, match="request: ") as refusal:
            ask(number)
        assert refusal.value.code == "request_number"
    engine.abort(1 << 63)  # an unknown one is fine


@pytest.mark.parametrize("name", ["", 5, None, "x" * 257, "a\nb", "\ud800"])
def test_an_adapter_has_a_name(engine: Engine, adapter: str, name: Any) -> None:
    with pytest.raises(InvalidRequest, match="an adapter's name") as refusal:
        engine.load_adapter(name, adapter)
    assert refusal.value.code == "adapter_name"


@pytest.mark.parametrize("path", [5, None, b"/x", "x" * 5000, "\0", "~nobodyx/a", "/dev/null"])
def test_an_adapter_has_a_folder(engine: Engine, path: Any) -> None:
    with pytest.raises(AdapterRejected, match="folder") as refusal:
        engine.load_adapter("a", path)
    assert refusal.value.code == "adapter_missing" and len(str(refusal.value)) < 200


@pytest.mark.parametrize("model", [5, None, ["a"]])
def test_a_model_has_a_name(engine: Engine, model: Any) -> None:
    with pytest.raises(InvalidRequest, match="model: a name"):
        engine.add([5], model)


def test_half_of_a_surrogate_pair_is_no_text(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="surrogate") as refusal:
        engine.add("a\ud800", max_tokens=1)
    assert (refusal.value.code, refusal.value.param) == ("text_unicode", "prompt")


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, "the context length"),
        ({"max_model_len": 100}, "max_model_len"),
        ({"max_model_len": 1024}, "the context length"),
        ({"kv_cache_memory_bytes": 40_000}, "the page pool, kv_cache_memory_bytes"),
    ],
    ids=str,
)
def test_what_bounds_a_request_is_known_by_name(base: Path, options: dict[str, Any], limit: str) -> None:
    engine = Engine(str(base), **{"dtype": "float32", "kv_cache_memory_bytes": 4 << 20} | options)
    assert engine.model_info.context_limit == limit
    engine.close()


def test_a_closed_engine_refuses(engine: Engine, adapter: str) -> None:
    info = engine.load_adapter("cold", adapter)
    prepared = engine.prepare_adapter("more", adapter)
    running = engine.add([5], "cold", max_tokens=9)
    engine.close()
    engine.close()
    for call in (
        engine.step,
        lambda: engine.add([5], max_tokens=1),
        lambda: engine.add([5], "cold", max_tokens=1),
        lambda: engine.load_adapter("new", adapter),
        lambda: engine.register_adapter(prepared),
        lambda: engine.pin_adapter(info.generation, True),
        lambda: engine.prewarm_adapter(info.generation),
    ):
        with pytest.raises(Unavailable) as refusal:
            call()
        assert refusal.value.code == "engine_closed"
    assert running.finish is None and str(running.id) in engine.dump()
