"""Adapters of a registry, loaded when a request names them."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from controlling import ADAPTERS, Control, another_engine, controlling
from lorad.control import on_demand
from lorad.errors import EngineFailure
from lorad.store.state import StateFile


def put(control: Control, name: str, content: str) -> None:
    control.write(name, content)


async def test_the_first_request_brings_an_adapter(tmp_path: Path) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root"), adapter_roots=[]) as control:
        put(control, "acme", "one")
        answers = await asyncio.gather(*(control.generation("acme") for _ in range(20)))
        assert len(set(answers)) == 1 and answers[0] is not None
        assert sum(control.engine.held.values()) == 1
        card = await control.card("acme")
        assert card["state"] == "ready" and card["on_demand"] is True
        status, answer = await control.client.post("/v1/completions", model="nobody", prompt="hi")
        assert status == 404 and answer["error"]["code"] == "model_not_found" and "nobody" in answer["error"]["message"]
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root"), adapter_roots=[]) as control:
        assert not control.manager.records, "nobody asked for it to stay"
        assert await control.generation("acme") == answers[0]


async def test_a_name_that_isnt_there_is_not_looked_for_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root"), adapter_roots=[]) as control:
        assert await control.generation("late") is None
        put(control, "late", "one")
        assert await control.generation("late") is None, "for a while it's taken as missing"
        monkeypatch.setattr(on_demand, "MISSING_SECONDS", 0.0)
        assert await control.generation("other") is None
        put(control, "other", "one")
        assert await control.generation("other") is not None


@pytest.mark.parametrize(
    "name", ["../elsewhere/a", "a/b", "..", "a@b", ".hidden", "x" * 300, "a\u200bb", "s3://bucket/a"]
)
async def test_names_that_lead_elsewhere_are_unknown(tmp_path: Path, name: str) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root"), adapter_roots=[]) as control:
        put(control, "a", "one")
        status, answer = await control.client.post("/v1/completions", model=name, prompt="hi")
        assert status in (400, 404), answer
        assert not control.engine.held and not control.manager.records


async def test_one_that_cant_be_loaded_tells_why(tmp_path: Path) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root"), adapter_roots=[]) as control:
        control.engine.bad = "broken"
        put(control, "x", "broken")
        status, answer = await control.client.post("/v1/completions", model="x", prompt="hi")
        assert status == 400 and answer["error"]["code"] == "adapter_rank" and answer["error"]["param"] == "model"
        assert str(control.root) not in str(answer), "a client isn't told where it lies"


async def test_only_so_many_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "GRACE_SECONDS", 0.0)
    async with controlling(
        tmp_path, adapter_registry=str(tmp_path / "root"), adapter_roots=[], max_on_demand_adapters=3
    ) as control:
        await control.load("kept", control.write("kept-source", "kept"))
        for number in range(6):
            put(control, f"n{number}", f"content {number}")
            assert await control.generation(f"n{number}") is not None
        await control.settled()
        assert {record.name for record in control.manager.records} == {"kept", "n3", "n4", "n5"}
        assert await control.generation("n0") is not None, "it comes back when it's asked for"


async def test_loads_on_demand_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "LOADING_MAX", 2)
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root"), adapter_roots=[]) as control:
        control.engine.pause = 0.2
        for number in range(3):
            put(control, f"n{number}", f"content {number}")
        first = [asyncio.create_task(control.generation(f"n{number}")) for number in range(2)]
        await asyncio.sleep(0.1)
        status, answer = await control.client.post("/v1/completions", model="n2", prompt="hi")
        assert status == 429 and answer["error"]["code"] == "on_demand_full"
        assert None not in await asyncio.gather(*first)


async def test_cold_names_at_once_are_all_served_whatever_the_limit(tmp_path: Path) -> None:
    async with controlling(
        tmp_path, adapter_registry=str(tmp_path / "root"), adapter_roots=[], max_on_demand_adapters=2
    ) as control:
        for number in range(8):
            put(control, f"n{number}", f"content {number}")
        answers = await asyncio.gather(*(control.generation(f"n{number % 8}") for number in range(80)))
        assert None not in answers and len(set(answers)) == 8


async def test_the_limit_holds_though_clients_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "GRACE_SECONDS", 0.0)
    async with controlling(
        tmp_path, adapter_registry=str(tmp_path / "root"), adapter_roots=[], max_on_demand_adapters=2
    ) as control:
        control.engine.pause = 0.05
        for number in range(9):
            put(control, f"n{number}", f"content {number}")
            asked = asyncio.create_task(control.generation(f"n{number}"))
            await asyncio.sleep(0.02)
            asked.cancel()
        await asyncio.sleep(0.3)
        await control.settled()
        assert len(control.manager.records) <= 2


async def test_requests_wait_for_what_an_operator_loads(tmp_path: Path) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        control.engine.pause = 0.2
        load = asyncio.create_task(control.load("x", control.write("elsewhere", "one")))
        await asyncio.sleep(0.05)
        assert await control.generation("x") is not None
        assert (await load)[0] == 200


async def test_an_operator_keeps_what_came_on_demand(tmp_path: Path) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        source = control.write("acme", "one")
        generation = await control.generation("acme")
        card = await control.card("acme")
        assert card["on_demand"] is True and card["kept"] is False
        status, operation = await control.load("acme", card["source"], pinned=True)
        assert status == 200 and operation["changed"] is False
        card = await control.card("acme")
        assert card["on_demand"] is False and card["kept"] is True and card["pinned"] is True and source
    async with controlling(tmp_path) as control:
        card = await control.card("acme")
        assert card["generation"] == generation and card["pinned"] is True


async def test_a_pin_keeps_what_came_on_demand(tmp_path: Path) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        control.write("acme", "one")
        assert await control.generation("acme") is not None
        status, card = await control.ask("PATCH", f"{ADAPTERS}/acme", pinned=True)
        assert status == 200 and card["kept"] is True and card["on_demand"] is False
    async with controlling(tmp_path) as control:
        assert (await control.card("acme"))["pinned"] is True


DIED = EngineFailure("the engine process has ended unexpectedly", code="engine_died")


async def test_what_came_on_demand_goes_with_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "GRACE_SECONDS", 0.0)
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        put(control, "acme", "one")
        generation = await control.generation("acme")
        control.engine.die(DIED)
        await another_engine(control)
        await control.settled()
        assert not control.manager.records and not control.manager.registry.adapters and not control.engine.held
        assert await control.generation("acme") == generation, "the next request brings it"


async def test_an_operators_load_of_it_that_the_engines_death_ended_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "GRACE_SECONDS", 0.0)
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        put(control, "acme", "one")
        before = await control.generation("acme")
        control.engine.pause = 0.1
        newer = control.write("newer", "two")
        load = asyncio.create_task(control.load("acme", newer, reload=True))
        await control.at_stage("checking")
        control.engine.die(DIED)
        assert (await load)[1]["error"]["code"] == "engine_gone"
        await another_engine(control)
        await control.settled()
        card = await control.card("acme")
        assert (card["state"], card["source"], card["kept"], card["on_demand"]) == ("ready", newer, True, False)
        assert await control.generation("acme") == card["generation"] != before


async def test_a_pin_of_it_while_the_engine_is_started_again_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "GRACE_SECONDS", 0.0)
    there, adapters = threading.Event(), StateFile.adapters

    def hangs(file: StateFile) -> Any:
        rows = adapters(file)
        assert there.wait(20)
        return rows

    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        put(control, "acme", "one")
        generation = await control.generation("acme")
        control.engine.die(DIED)
        monkeypatch.setattr(StateFile, "adapters", hangs)
        again = asyncio.create_task(another_engine(control))
        await asyncio.sleep(0.01)
        pin = asyncio.create_task(control.ask("PATCH", f"{ADAPTERS}/acme", pinned=True))
        async with asyncio.timeout(20):
            while not control.manager.record("acme").busy:
                await asyncio.sleep(0.002)
        there.set()
        await again
        assert (await pin)[0] == 200
        await control.settled()
        card = await control.card("acme")
        assert (card["state"], card["kept"], card["pinned"], card["on_demand"]) == ("ready", True, True, False)
        assert await control.generation("acme") == generation
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        assert (await control.card("acme"))["pinned"] is True


async def test_an_alias_brings_what_it_stands_for(tmp_path: Path) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        control.write("acme", "one")
        generation = await control.generation("acme")
        await control.ask("PUT", "/v1/lora_aliases/short", target="acme")
        await control.unload("acme")
        assert await control.generation("short") == generation


async def test_a_failed_name_isnt_replaced_by_what_the_registry_has(tmp_path: Path) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        source = control.write("acme", "one")
        await control.load("acme", source)
    shutil.rmtree(tmp_path / "adapters")
    (tmp_path / "root" / "acme" / "adapter_config.json").write_text("changed")
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        assert (await control.card("acme"))["state"] == "failed"
        assert await control.generation("acme") is None
        assert (await control.card("acme"))["state"] == "failed"


async def test_requests_dont_flush_an_operators_operations(tmp_path: Path) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        _, operation = await control.load("x", control.write("a", "one"))
        for number in range(20):
            assert await control.generation(f"nobody-{number}") is None
        assert [one["id"] for one in (await control.ask("GET", "/v1/operations"))[1]["data"]] == [operation["id"]]


async def test_where_the_engine_has_no_place_the_one_used_longest_ago_makes_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "GRACE_SECONDS", 0.0)
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root")) as control:
        control.engine.held_max = 3
        await control.load("kept", control.write("kept-source", "kept"))
        for name in ("a", "b", "c", "a"):
            put(control, name, f"content of {name}")
            assert await control.generation(name) is not None
        await control.settled()
        assert {record.name for record in control.manager.records} == {"kept", "a", "c"}
        await control.load("a", (await control.card("a"))["source"])  # an operator wants them to stay
        await control.load("c", (await control.card("c"))["source"])
        status, answer = await control.client.post("/v1/completions", model="b", prompt="hi")
        assert status == 503 and answer["error"]["code"] == "adapters_full"
        assert {record.name for record in control.manager.records} == {"kept", "a", "c"}
