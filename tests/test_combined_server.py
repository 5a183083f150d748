"""Combinations of adapters over HTTP: who is refused, what is made and shared, and that it goes again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlling import ADAPTERS, KEY, Control, controlling
from lorad.adapters.combine.weighted import PARTS_MAX, Term, generation_of
from lorad.config import EngineConfig, ServerConfig
from lorad.control import on_demand
from lorad.engine.messages import AdapterStats
from lorad.errors import InvalidRequest, NotFound
from lorad.models.open import open_model
from lorad.server.run import Server
from make_adapter import make_adapter
from oracle import Oracle
from scripted_engine import ScriptedEngine, adapter_info, echo, empty_stats, model_info
from serving import CONTEXT, VOCAB, Client, chunks_of, serving
from test_combined_adapters import Tiny, by_peft
from tiny import make_tiny

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BOTH = [{"name": "devil", "weight": 0.7}, {"name": "org/name:v2", "weight": -0.3}]
SECONDS = 20


def generation(*parts: tuple[str, float]) -> str:
    """Of scripted adapters by name."""
    return generation_of([Term(name, f"gen-{name}", weight) for name, weight in parts])


SUM = generation(("devil", 0.7), ("org/name:v2", -0.3))


async def ask(client: Client, adapters: Any, path: str = COMPLETIONS, **fields: Any) -> tuple[int, Any]:
    prompt = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    return await client.post(path, **{"model": "base", "adapters": adapters, "max_tokens": 2, **prompt, **fields})


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(0.001)


def slow(engine: ScriptedEngine) -> asyncio.Event:
    """Lets requests go on only from when the event is set."""
    engine.auto, going = False, asyncio.Event()

    async def go() -> None:
        await going.wait()
        while True:
            engine.step()
            await asyncio.sleep(0)

    engine.going = asyncio.create_task(go())  # type: ignore[attr-defined]
    return going


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_combination_answers_under_the_bases_name(path: str) -> None:
    async with serving(combined_max=2) as client:
        status, answer = await ask(client, BOTH, path)
        assert status == 200, answer
        assert answer["model"] == "base" and answer["system_fingerprint"] == SUM
        assert {request.generation for request in client.engine.submitted} == {SUM}
        (terms,) = client.engine.combined
        assert sorted((term.name, term.generation, term.weight) for term in terms) == [
            ("devil", "gen-devil", 0.7),
            ("org/name:v2", "gen-org/name:v2", -0.3),
        ]
        fields: dict[str, Any] = (
            {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
        )
        chunks = chunks_of(await client.stream(path, model="base", adapters=BOTH[::-1], n=2, **fields))
        assert {chunk["system_fingerprint"] for chunk in chunks} == {SUM}
        assert len(client.engine.combined) == 1, "in whatever order: it's there"
        assert client.engine.held[SUM] == 1
        models = (await client.get("/v1/models"))[1]["data"]
        assert [model["id"] for model in models] == ["base", "devil", "org/name:v2"], "it has no name"
        await client.alive()


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_they_are_off_by_default(path: str) -> None:
    async with serving() as client:
        status, answer = await ask(client, BOTH, path)
        assert status == 400 and answer["error"]["code"] == "combinations_off", answer
        assert answer["error"]["param"] == "adapters" and "--max-combined-adapters" in answer["error"]["message"]
        assert not client.engine.submitted and not client.engine.combined
        assert (await ask(client, None, path))[0] == 200, "null is the same as leaving it out"
    assert EngineConfig().max_combined_adapters == 0


def part(name: Any = "devil", weight: Any = 0.5) -> dict[str, Any]:
    return {"name": name, "weight": weight}


@pytest.mark.parametrize(
    ("adapters", "status", "code", "words"),
    [
        ([], 400, "combination_parts", f"adapters: 1 to {PARTS_MAX} entries, got 0"),
        ([part(str(k)) for k in range(PARTS_MAX + 1)], 400, "combination_parts", f"got {PARTS_MAX + 1}"),
        ([part(weight=0)], 400, "combination_weight", "adapters[0].weight: 0.001 to 10, or the same below 0, got 0"),
        ([part(), part("org/name:v2", 10.001)], 400, "combination_weight", "adapters[1].weight"),
        ([part(weight=-1e300)], 400, "combination_weight", "got -1e+300"),
        ([part(), part()], 400, "combination_twice", "adapters[1].name: 'devil' is there twice"),
        ([part(), part("imp")], 400, "combination_twice", "adapters[1].name: 'imp' is there twice"),
        ([part(), part("base")], 400, "combination_base", "adapters[1].name: an adapter, got the base, 'base'"),
        ([part(), part("nobody")], 404, "model_not_found", "'nobody' does not exist"),
        ([part(weight="0.5")], 400, "field_type", "adapters[0].weight: expected `float`, got `str`"),
        ([part(weight=True)], 400, "field_type", "adapters[0].weight"),
        ([part(weight=None)], 400, "field_type", "adapters[0].weight"),
        ([part(3)], 400, "field_type", "adapters[0].name"),
        ([{"name": "devil"}], 400, "missing_field", "adapters[0].weight: required"),
        ([{**part(), "rank": 3}], 400, "unknown_field", "rank"),
        ({"devil": 0.5}, 400, "field_type", "adapters: expected `array"),
        ("devil", 400, "field_type", "adapters"),
    ],
)
async def test_refusals(adapters: Any, status: int, code: str, words: str) -> None:
    async with serving(combined_max=2) as client:
        client.front.registry.set_alias("imp", "devil")
        found, answer = await ask(client, adapters)
        assert (found, answer["error"]["code"]) == (status, code), answer
        assert words in answer["error"]["message"]
        assert answer["error"]["param"].startswith("adapters")
        assert not client.engine.submitted and not client.engine.combined and not client.engine.held
        await client.alive()


@pytest.mark.parametrize(
    ("model", "status", "code"), [("devil", 400, "combination_model"), ("x", 404, "model_not_found")]
)
async def test_the_model_is_the_base(model: str, status: int, code: str) -> None:
    async with serving(combined_max=2) as client:
        found, answer = await ask(client, BOTH, model=model)
        assert (found, answer["error"]["code"], answer["error"]["param"]) == (status, code, "model")
        assert code == "model_not_found" or "it's the base, 'base', got 'devil'" in answer["error"]["message"]
        assert not client.engine.submitted and not client.engine.combined


async def test_a_key_is_wanted_as_for_any_model() -> None:
    async with serving(combined_max=2, api_key="secret") as client:
        assert (await ask(client, BOTH))[0] == 401 and not client.engine.combined


async def test_one_of_weight_one_is_the_adapter_itself() -> None:
    async with serving(combined_max=1) as client:
        for name in ("devil", "org/name:v2", "devil"):
            status, answer = await ask(client, [part(name, 1)])
            assert status == 200 and answer["system_fingerprint"] == f"gen-{name}" and answer["model"] == "base"
        assert not client.engine.combined and len(client.front.combinations) == 0
        status, answer = await ask(client, [part("devil", 0.5)])
        assert answer["system_fingerprint"] == generation(("devil", 0.5))


async def test_requests_at_once_share_one_copy() -> None:
    async with serving(combined_max=1) as client:
        client.engine.pause = 0.05
        answers = await asyncio.gather(*(ask(client, BOTH) for _ in range(20)))
        assert {(status, answer["system_fingerprint"]) for status, answer in answers} == {(200, SUM)}
        assert len(client.engine.combined) == 1 and client.engine.held == {SUM: 1}


async def test_a_refused_combination_is_answered_and_can_be_repeated() -> None:
    async with serving(combined_max=1) as client:
        engine = client.engine
        engine.pause, engine.refuse_combination = (
            0.02,
            InvalidRequest("ranks", code="combination_rank_limit", param="adapters"),
        )
        answers = await asyncio.gather(*(ask(client, BOTH) for _ in range(5)))
        assert {(status, answer["error"]["code"]) for status, answer in answers} == {(400, "combination_rank_limit")}
        assert len(engine.combined) == 1 and len(client.front.combinations) == 0
        engine.refuse_combination = ValueError("anything")
        status, answer = await ask(client, BOTH)
        assert status == 500 and answer["error"]["code"] == "adapter_load"
        engine.refuse_combination = None
        assert (await ask(client, BOTH))[0] == 200
        await client.alive()


async def test_idle_copies_make_way_for_others() -> None:
    async with serving(combined_max=2) as client:
        for number in range(6):
            assert (await ask(client, [part(weight=0.5 + number / 100)]))[0] == 200
            assert len(client.front.combinations) <= 2
            assert (await ask(client, [part(weight=0.5)]))[0] == 200, "used between all others"
        await until(lambda: len(client.engine.held) == 2)
        assert client.engine.held[generation(("devil", 0.5))] == 1 and len(client.engine.combined) == 6
        scrape = await (await client.session.get(client.address + "/metrics")).text()
        assert "lorad:combined_adapters 2.0" in scrape


async def test_copies_at_work_or_on_their_way_stay() -> None:
    async with serving(combined_max=2) as client:
        going = slow(client.engine)
        running = asyncio.create_task(ask(client, [part(weight=0.5)]))
        await until(lambda: client.engine.running == 1)
        client.engine.pause = 0.2
        coming = asyncio.create_task(ask(client, [part(weight=0.6)]))
        await until(lambda: len(client.engine.combined) == 2)
        status, answer = await ask(client, [part(weight=0.7)])
        assert status == 429 and answer["error"]["code"] == "combinations_full", answer
        assert "2 combinations" in answer["error"]["message"]
        assert (await ask(client, [part(weight=1)], max_tokens=1, stream=False, prompt=[]))[0] == 400, "others go on"
        going.set()
        assert [(await task)[0] for task in (running, coming)] == [200, 200]
        assert (await ask(client, [part(weight=0.7)]))[0] == 200


async def test_a_reload_makes_another_and_running_requests_keep_theirs() -> None:
    async with serving(combined_max=4) as client:
        going = slow(client.engine)
        running = asyncio.create_task(ask(client, BOTH))
        await until(lambda: client.engine.running == 1)
        client.front.registry.publish(adapter_info("devil", "gen-devil"))
        assert len(client.front.combinations) == 1, "the same content again changes nothing"
        client.front.registry.publish(adapter_info("devil", "gen-newer"))
        assert len(client.front.combinations) == 0
        after = asyncio.create_task(ask(client, BOTH))
        await until(lambda: client.engine.running == 2)
        newer = generation_of([Term("devil", "gen-newer", 0.7), Term("org/name:v2", "gen-org/name:v2", -0.3)])
        going.set()
        assert [(await task)[1]["system_fingerprint"] for task in (running, after)] == [SUM, newer]
        await until(lambda: client.engine.held == {newer: 1})


async def test_a_part_that_goes_while_the_sum_is_on_its_way() -> None:
    async with serving(combined_max=4) as client:
        client.engine.pause = 0.1
        waiting = asyncio.create_task(ask(client, BOTH))
        await until(lambda: client.engine.combined)
        client.front.registry.publish(adapter_info("devil", "gen-newer"))
        status, answer = await waiting
        newer = generation_of([Term("devil", "gen-newer", 0.7), Term("org/name:v2", "gen-org/name:v2", -0.3)])
        assert (status, answer["system_fingerprint"]) == (200, newer)
        client.front.registry.publish(adapter_info("devil", "gen-third"))
        waiting = asyncio.create_task(ask(client, BOTH))
        await until(lambda: len(client.engine.combined) == 3)
        client.front.registry.withdraw("devil")
        status, answer = await waiting
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "adapters")
        await until(lambda: not client.engine.held)
        assert len(client.front.combinations) == 0


async def test_a_client_that_leaves_while_it_comes_leaves_nothing_but_the_copy() -> None:
    async with serving(combined_max=1) as client:
        client.engine.pause = 0.05
        asked = asyncio.create_task(ask(client, BOTH))
        await until(lambda: client.engine.combined)
        asked.cancel()
        await until(lambda: client.engine.held[SUM] == 1)
        assert not client.engine.submitted
        assert (await ask(client, [part()]))[0] == 200, "it's idle and makes way"
        await until(lambda: client.engine.held == {generation(("devil", 0.5)): 1})


@contextlib.asynccontextmanager
async def combining(folder: Path, **options: Any) -> AsyncIterator[Control]:
    """A server with control endpoints and two adapters, x and y."""
    async with controlling(folder, combined_max=4, **options) as control:
        for name in ("x", "y"):
            assert (await control.load(name, control.write(name, f"content {name}")))[0] == 200
        yield control


XY = [part("x"), part("y")]


async def test_an_unload_of_a_part_ends_its_combinations_in_time(tmp_path: Path) -> None:
    async with combining(tmp_path) as control:
        going = slow(control.engine)
        running = [asyncio.create_task(ask(control.client, XY)) for _ in range(3)]
        other = asyncio.create_task(ask(control.client, [part("y", 0.25)]))
        await until(lambda: control.engine.running == 4)
        unload = asyncio.create_task(control.unload("x", "within_seconds=0&wait_seconds=20"))
        for task in running:
            status, answer = await task
            assert status == 503 and answer["error"]["code"] == "adapter_unloaded"
        going.set()
        assert (await unload)[0] == 200 and (await other)[0] == 200
        assert (await ask(control.client, XY))[0] == 404
        assert (await control.unload("y"))[0] == 200
        await until(lambda: not control.engine.held)


async def test_an_unload_waits_for_combinations_that_run(tmp_path: Path) -> None:
    async with combining(tmp_path) as control:
        going = slow(control.engine)
        running = asyncio.create_task(ask(control.client, XY))
        await until(lambda: control.engine.running == 1)
        status, operation = await control.ask("DELETE", f"{ADAPTERS}/x")
        assert status == 202 and operation["progress"] == {"done": 0, "total": 1}
        assert not running.done()
        going.set()
        assert (await running)[0] == 200
        status, ended = await control.ask("GET", f"/v1/operations/{operation['id']}?wait_seconds=20")
        assert ended["state"] == "succeeded"
        await until(lambda: sum(control.engine.held.values()) == 1)


async def test_parts_come_on_demand_and_stay_while_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "GRACE_SECONDS", 0.0)
    registry = {"adapter_registry": str(tmp_path / "root"), "adapter_roots": [], "max_on_demand_adapters": 3}
    async with controlling(tmp_path, combined_max=4, **registry) as control:
        for name in ("x", "y", "z", "later"):
            control.write(name, f"content {name}")
        going = slow(control.engine)
        running = asyncio.create_task(ask(control.client, XY))
        await until(lambda: control.engine.running == 1)
        bring = control.client.front.names.on_unknown
        assert bring is not None
        for name in ("z", "later"):
            await bring(name, NotFound("it isn't there", code="model_not_found"))
        await control.settled()
        assert {record.name for record in control.manager.records} == {"x", "y", "later"}, "x and y are at work"
        going.set()
        assert (await running)[0] == 200
        status, answer = await ask(control.client, [part("x"), part("w")])
        assert (status, answer["error"]["param"]) == (404, "adapters") and "'w'" in answer["error"]["message"]
        control.engine.bad = "broken"
        control.write("v", "broken")
        status, answer = await ask(control.client, [part("x"), part("v")])
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "adapter_rank", "adapters")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    base = make_tiny(folder / "base")
    config = open_model(base).config
    ranks = {"x": 4, "y": 9, "newer": 6}
    return Tiny(base, {name: make_adapter(folder / name, config, rank=rank, seed=rank) for name, rank in ranks.items()})


async def test_a_real_server_reloads_a_part_beside_traffic(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer is that of the combination that its fingerprint names, by PEFT; none of them is refused."""
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path))
    prompt, tokens = [70, 71, 72, 73], 8
    wanted: dict[str, list[int]] = {}
    weights = (0.6, 0.5)
    for x in ("x", "newer"):
        reference, ids = Oracle(by_peft(tiny, {x: weights[0], "y": weights[1]})), list(prompt)
        for _ in range(tokens):
            ids.append(int(reference.logprobs(ids)[-1].argmax()))
        wanted[x] = ids[len(prompt) :]
    assert wanted["x"] != wanted["newer"]
    server = Server(
        EngineConfig(model=str(tiny.base), dtype="float32", kv_cache_memory_bytes=8 << 20, max_combined_adapters=2),
        ServerConfig(port=0, served_model_name="base", control_key=KEY, adapter_roots=[str(tiny.base.parent)]),
    )
    address = await server.start()
    seen: dict[str, set[tuple[str, ...]]] = {}
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {
        "model": "base",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "logprobs": 0,
        "ignore_eos": True,
    }
    body["adapters"] = [part("x", weights[0]), part("y", weights[1])]
    assert server.front is not None

    async def load(session: aiohttp.ClientSession, name: str, source: str) -> str:
        fields = {"source": str(tiny.adapters[source]), "reload": True, "wait_seconds": 60}
        async with session.put(f"{ADAPTERS}/{name}", json=fields, headers=headers) as response:
            assert response.status == 200, await response.text()
            return str((await response.json())["generation"])

    async def traffic(session: aiohttp.ClientSession, stop: asyncio.Event) -> int:
        count = 0
        while not stop.is_set():
            async with session.post(COMPLETIONS, json=body) as response:
                answer = await response.json()
                assert response.status == 200, answer
                words = tuple(answer["choices"][0]["logprobs"]["tokens"])
                seen.setdefault(answer["system_fingerprint"], set()).add(words)
                count += 1
        return count

    try:
        async with aiohttp.ClientSession(address) as session:
            generations = {name: await load(session, name, name) for name in ("x", "y")}
            stop = asyncio.Event()
            clients = [asyncio.create_task(traffic(session, stop)) for _ in range(4)]
            for number in range(8):
                await until(lambda number=number: len(seen) > min(number, 1))
                generations["newer" if number % 2 == 0 else "x"] = await load(
                    session, "x", "x" if number % 2 else "newer"
                )
            await asyncio.sleep(0.1)
            stop.set()
            assert sum(await asyncio.gather(*clients)) > 8
            tokenizer = server.front.text.tokenizer
            for x, made in wanted.items():
                key = generation_of([Term("x", generations[x], weights[0]), Term("y", generations["y"], weights[1])])
                (words,) = seen.pop(key)
                assert [_bytes(word) for word in words] == [tokenizer.token_bytes(token) for token in made], x
            assert not seen, "an answer of something else"
            for name in ("x", "y"):
                async with session.delete(f"{ADAPTERS}/{name}?wait_seconds=60", headers=headers) as response:
                    assert response.status == 200
            async with asyncio.timeout(SECONDS):
                while (stats := await server.engine.stats()).adapters:
                    await asyncio.sleep(0.01)
            assert stats.pages_adapters == 0
    finally:
        await server.stop(drain_seconds=0)


async def test_what_a_real_engine_refuses_is_answered(tiny: Tiny) -> None:
    modules = [f"{name}={path}" for name, path in tiny.adapters.items()]
    config = EngineConfig(model=str(tiny.base), dtype="float32", max_lora_rank=12, max_combined_adapters=1)
    server = Server(config, ServerConfig(port=0, served_model_name="base", lora_modules=modules))
    address = await server.start()
    try:
        async with aiohttp.ClientSession(address) as session:
            body = {"model": "base", "prompt": "x", "max_tokens": 2}
            async with session.post(COMPLETIONS, json={**body, "adapters": [part("x"), part("y")]}) as response:
                answer = await response.json()
            assert response.status == 400 and answer["error"]["code"] == "combination_rank_limit"
            assert answer["error"]["param"] == "adapters" and "13 in layer 0" in answer["error"]["message"]
            async with session.post(COMPLETIONS, json={**body, "adapters": [part("x"), part("newer")]}) as response:
                assert response.status == 200, await response.text()
        with pytest.raises(NotFound):
            await server.engine.combine_adapters([Term("x", "0" * 32, 1.0)])
        assert len((await server.engine.stats()).adapters) == 4
    finally:
        await server.stop(drain_seconds=0)


def _bytes(word: str) -> bytes:
    """A token's bytes from how log-probabilities call it."""
    return bytes.fromhex(word.removeprefix("bytes:").replace("\\x", "")) if word.startswith("bytes:") else word.encode()


async def test_the_sums_pages_count_against_the_context() -> None:
    engine = ScriptedEngine(echo, info=model_info(VOCAB, CONTEXT, pages=4))
    async with serving(engine, combined_max=1) as client:
        status, answer = await ask(client, BOTH, prompt=[1] * 16)
        assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
        assert "the page pool beside the adapter" in answer["error"]["message"]


async def test_the_page_tells_whose_sum_it_is(tmp_path: Path) -> None:
    async with combining(tmp_path) as control:
        status, answer = await ask(control.client, XY)
        assert status == 200
        control.engine.stats_now = empty_stats(adapters={answer["system_fingerprint"]: AdapterStats("hot", 0, 0, 3)})
        (told,) = (await control.ask("GET", "/v1/overview"))[1]["pages"]["by_adapter"]
        assert (told["names"], told["parts"], told["pages"]) == ([], ["x", "y"], 3)
