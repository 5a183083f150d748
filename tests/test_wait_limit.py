"""A limit on the wait: over real HTTP, with the real engine on a tiny model."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lorad import Engine
from lorad.config import EngineConfig, ServerConfig
from lorad.errors import InvalidRequest
from lorad.models.config import MODULES
from lorad.models.open import open_model
from lorad.server.run import Server
from make_adapter import make_adapter
from tiny import make_tiny

SMALL: dict[str, Any] = {
    "max_num_seqs": 1,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 4 << 20,
    "preempt_after_tokens": 16,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(
        tmp_path_factory.mktemp("adapters") / "a", open_model(base).config, rank=8, modules=list(MODULES)
    )


def least(base: Path) -> float:
    """The shortest limit on the wait that can be kept, as the refusal of a shorter one says."""
    with pytest.raises(InvalidRequest) as refused:
        Engine(str(base), wait_seconds_max=0.001, **SMALL)
    assert (refused.value.code, refused.value.param) == ("option_range", "wait_seconds_max")
    said = re.fullmatch(r"wait_seconds_max: at least ([0-9.]+), got 0\.001", refused.value.message)
    assert said, refused.value.message
    return float(said[1])


def test_a_limit_that_cant_be_kept_is_refused_at_the_start(base: Path) -> None:
    limit = least(base)
    Engine(str(base), wait_seconds_max=limit, **SMALL).close()
    with pytest.raises(InvalidRequest, match="wait_seconds_max: at least"):
        Engine(str(base), wait_seconds_max=limit - 0.002, **SMALL)
    with pytest.raises(InvalidRequest, match="reserved_seqs: at most 0, got 1") as refused:
        Engine(str(base), reserved_seqs=1, **SMALL)
    assert refused.value.param == "reserved_seqs"


def test_the_options_reach_the_core(base: Path) -> None:
    options = {**SMALL, "max_num_seqs": 5}
    engine = Engine(str(base), wait_seconds_max=900, urgent_after_seconds=0.25, reserved_seqs=2, **options)
    assert {name: engine.core.config[name] for name in ("wait_us_max", "urgent_after_us", "rows_reserved")} == {
        "wait_us_max": 900_000_000,
        "urgent_after_us": 250_000,
        "rows_reserved": 2,
    }
    assert engine.core.config["preempt_after_tokens"] == 16
    engine.close()


@contextlib.asynccontextmanager
async def serving(base: Path, adapter: Path, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    engine = EngineConfig(model=str(base), dtype="float32", **{**SMALL, **options})
    server = Server(engine, ServerConfig(port=0, served_model_name="base", lora_modules=[f"a={adapter}"]))
    address = await server.start()
    try:
        async with aiohttp.ClientSession(address) as session:
            yield session
    finally:
        await server.stop(drain_seconds=0)


def body(model: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": "x", "max_tokens": tokens, "ignore_eos": True, **more}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wait_that_could_be_too_long_is_a_429(base: Path, adapter: Path, stream: bool) -> None:
    """A long answer has the only row, another of the base waits. An adapter's request would wait a turn more."""
    urgent = EngineConfig().urgent_after_seconds
    turn = (least(base) - urgent) / 2  # alone: its own turn and one by rounding
    limit = round(urgent + 2.5 * turn, 3)
    async with serving(base, adapter, wait_seconds_max=limit) as session:
        async with session.post("/v1/completions", json=body("base", 900, stream=True)) as first:
            assert first.status == 200
            await first.content.readline()  # it runs
            async with session.post("/v1/completions", json=body("a", 1, stream=stream)) as alone:
                assert alone.status == 200, "alone its wait is short enough"
        async with session.post("/v1/completions", json=body("base", 900, stream=True)) as first:
            await first.content.readline()
            second = asyncio.create_task(session.post("/v1/completions", json=body("base", 2)))
            async with asyncio.timeout(5):
                while not re.search(
                    r"^vllm:num_requests_waiting\S* 1", await (await session.get("/metrics")).text(), re.M
                ):
                    await asyncio.sleep(0.005)
            async with session.post("/v1/completions", json=body("a", 2, stream=stream)) as refused:
                assert refused.status == 429 and int(refused.headers["Retry-After"]) >= 1
                error = (await refused.json())["error"]
            assert error["code"] == "wait_too_long" and error["type"] == "rate_limit_error"
            said = re.fullmatch(
                r"the wait could become ([0-9.]+) s, at most ([0-9.]+) s are accepted \(wait_seconds_max\)",
                error["message"],
            )
            assert said, error["message"]
            assert float(said[1]) > float(said[2]) == pytest.approx(limit, rel=1e-5)
            async with session.post("/v1/completions", json=body("base", 2)) as behind:
                assert behind.status == 200, "in a queue that waits already nobody waits longer"
        assert (await second).status == 200
        for model in ("a", "base"):
            async with session.post("/v1/completions", json=body(model, 2)) as after:
                assert after.status == 200
