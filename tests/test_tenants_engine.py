"""Tenants in the real engine: the limits that the scheduler keeps, prefixes that are apart, the whole way over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lorad import Engine
from lorad.config import EngineConfig, ServerConfig
from lorad.engine.messages import Finished, Generate, Sampling
from lorad.errors import LoradError
from lorad.models.open import open_model
from lorad.server.run import Server
from lorad.tenants.file import TenantFile
from lorad.tenants.tenant import Limits, Tenant
from make_adapter import make_adapter
from tiny import make_tiny

PROMPT = list(range(5, 69))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(base: Path) -> Any:
    engine = Engine(str(base), kv_cache_memory_bytes=2 << 20)
    yield engine
    engine.close()


def submit(engine: Engine, id: int, tenant: int, tokens: int = 4) -> None:
    engine.submit(Generate(id, PROMPT, Sampling(max_tokens=tokens, temperature=0.0), tenant=tenant))


def finish(engine: Engine) -> dict[int, Finished]:
    ends: dict[int, Finished] = {}
    while (step := engine.step()) is not None:
        assert engine.core.check() is None
        ends |= {end.id: end for end in step.finished}
    return ends


def test_running_max_and_waiting_max(engine: Engine) -> None:
    engine.set_tenant(1, running_max=1, waiting_max=1)
    submit(engine, 1, tenant=1)
    engine.step()
    submit(engine, 2, tenant=1)
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (1, 1)
    with pytest.raises(LoradError) as refusal:
        submit(engine, 3, tenant=1)
    assert refusal.value.code == "tenant_queue_full"
    submit(engine, 4, tenant=2)
    engine.step()
    assert engine.stats().running == 2
    assert {id: end.reason for id, end in finish(engine).items()} == {1: "length", 2: "length", 4: "length"}


def test_pages_max(engine: Engine) -> None:
    engine.set_tenant(1, pages_max=4)
    with pytest.raises(LoradError) as refusal:
        submit(engine, 1, tenant=1, tokens=40)
    assert refusal.value.code == "tenant_never_fits"
    submit(engine, 2, tenant=2, tokens=40)
    assert finish(engine)[2].reason == "length"


@pytest.mark.parametrize("limits", [{"weight": 0}, {"weight": 1001}, {"running_max": -1}, {"pages_max": 1 << 32}])
def test_limits_out_of_range(engine: Engine, limits: dict[str, int]) -> None:
    with pytest.raises(LoradError) as refusal:
        engine.set_tenant(1, **limits)
    assert refusal.value.code in ("weight_out_of_range", "request_number")


def test_a_tenant_finds_its_own_prefixes_and_no_other(engine: Engine) -> None:
    for id, tenant in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 0)):
        submit(engine, id, tenant)
        cached = finish(engine)[id].cached_tokens
        assert (cached > 0) is (id in (2, 4)), f"request {id} of tenant {tenant} found {cached} tokens"


async def test_two_tenants_over_http(base: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    file = TenantFile(state)
    keys = {}
    for name, limits in (("one", Limits(running_max=1)), ("two", Limits())):
        keys[name] = file.add_key(file.put(Tenant(name, 0, limits=limits)).name)[0]
    adapter = make_adapter(tmp_path / "a", open_model(base).config, rank=8)
    options = ServerConfig(
        port=0, served_model_name="base", tenants=True, state_file=str(state), lora_modules=[f"a={adapter}"]
    )
    server = Server(EngineConfig(model=str(base), kv_cache_memory_bytes=2 << 20), options)
    url = await server.start()
    try:
        async with aiohttp.ClientSession(base_url=url) as session:

            async def ask(name: str, model: str = "base") -> dict[str, Any]:
                body = {"model": model, "prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}
                headers = {"Authorization": f"Bearer {keys[name]}"}
                async with session.post("/v1/completions", json=body, headers=headers) as response:
                    assert response.status == 200, await response.text()
                    answer: dict[str, Any] = await response.json()
                    return answer

            answers = await asyncio.gather(*(ask(name) for name in ("one", "two") * 8))
            assert {answer["usage"]["completion_tokens"] for answer in answers} == {4}
            await ask("two", "a")
            await ask("two", "a")
    finally:
        await server.stop()
    used = {row.tenant: row.used for row in file.usage() if row.model == "base"}
    assert {name: (one.requests, one.prompt_tokens, one.generation_tokens) for name, one in used.items()} == {
        name: (8, 8 * len(PROMPT), 32) for name in ("one", "two")
    }
    (of_a,) = (row.used for row in file.usage() if row.model == "a")
    assert (of_a.requests, of_a.loads) == (2, 1) and of_a.load_bytes > 0 and of_a.load_seconds > 0
    assert used["one"].loads == used["two"].loads == 0


def test_a_load_is_charged_once_and_to_who_waited_for_it(base: Path, tmp_path: Path) -> None:
    engine = Engine(str(base), kv_cache_memory_bytes=2 << 20)
    info = engine.load_adapter("a", str(make_adapter(tmp_path / "a", open_model(base).config, rank=8)))

    def ask(*tenants: int) -> list[int]:
        """Bytes that each was charged with."""
        for number, tenant in enumerate(tenants):
            sampling = Sampling(max_tokens=2, temperature=0.0)
            engine.submit(Generate(number, PROMPT, sampling, info.generation, tenant=tenant))
        ends = finish(engine)
        waits = [ends[number].waits for number in range(len(tenants))]
        return [0 if wait is None else wait.load_bytes for wait in waits]

    first = ask(1, 2, 3)
    assert sorted(first)[:2] == [0, 0] and max(first) == info.pages * engine.worker.geometry.page_bytes
    assert ask(1, 2, 3) == [0, 0, 0], "it's hot"
    engine.close()


def test_an_api_key_and_tenants_are_two_answers_to_one_question(base: Path) -> None:
    with pytest.raises(LoradError) as refusal:
        Server(EngineConfig(model=str(base)), ServerConfig(tenants=True, api_key="one for all"))
    assert refusal.value.code == "option_conflict"


@pytest.mark.parametrize("option", ["api_key", "control_key"])
@pytest.mark.parametrize("key", ["se cret", "secret\n", " secret", "\udcff", "schlüssel", "\0"])
def test_a_key_that_no_header_brings_is_refused_and_not_told(base: Path, option: str, key: str) -> None:
    with pytest.raises(LoradError) as refusal:
        Server(EngineConfig(model=str(base)), ServerConfig(**{option: key}))
    assert (refusal.value.code, refusal.value.param) == ("option_form", option)
    assert option in refusal.value.message and key not in refusal.value.message
