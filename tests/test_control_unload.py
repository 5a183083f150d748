"""Unloads while the server runs: drained, within a time, at once; what they end and what not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from controlling import Control, controlling
from lorad.sources.cache import AdapterCache
from lorad.store.state import StateFile

WAIT = 20


async def test_of_many_unloads_one_succeeds(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
        answers = await asyncio.gather(*(control.unload("x") for _ in range(20)))
        assert sorted(status for status, _ in answers) == [200] + [404] * 19
        assert (await control.unload("never"))[1]["error"]["code"] == "adapter_not_found"
        assert not control.engine.held and not control.manager.records


async def run_on(control: Control, name: str, tokens: int = 5) -> list[asyncio.Task[tuple[int, Any]]]:
    """Three requests under a name that run until the test steps the engine."""
    control.engine.auto = False
    control.engine.script = lambda request: [97] * tokens
    asked = [
        asyncio.create_task(control.client.post("/v1/completions", model=name, prompt="hi", max_tokens=tokens))
        for _ in range(3)
    ]
    async with asyncio.timeout(5):
        while control.engine.running < 3:
            await asyncio.sleep(0.002)
    return asked


async def let_end(control: Control) -> None:
    """Steps the engine until nothing runs, and from then on it does so itself."""
    control.engine.auto = True
    while control.engine.running:
        control.engine.step()
        await asyncio.sleep(0)


async def test_an_unload_drains(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
        asked = await run_on(control, "x")
        status, operation = await control.unload("x", "wait_seconds=0.05")
        assert status == 202 and operation["stage"] == "draining" and operation["progress"] == {"done": 0, "total": 3}
        assert (await control.client.post("/v1/completions", model="x", prompt="hi"))[0] == 404
        await let_end(control)
        answers = await asyncio.gather(*asked)
        assert {status for status, _ in answers} == {200}
        assert {answer["choices"][0]["text"] for _, answer in answers} == {"aaaaa"}
        status, ended = await control.ask("GET", f"/v1/operations/{operation['id']}?wait_seconds={WAIT}")
        assert ended["state"] == "succeeded" and not control.engine.held


@pytest.mark.parametrize("within", [0, 0.1])
async def test_an_unload_with_a_deadline_ends_what_still_runs(tmp_path: Path, within: float) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
        await control.load("y", control.write("a", "one"))
        asked = await run_on(control, "x", tokens=50)
        status, _ = await control.unload("x", f"within_seconds={within}")
        assert status == 202
        for answer in asyncio.as_completed(asked):
            status, error = await answer
            assert status == 503 and error["error"]["code"] == "adapter_unloaded"
        control.engine.step()
        await control.settled()
        await let_end(control)
        assert await control.generation("y") is not None, "another name for the same content isn't touched"


async def test_a_name_that_drains_can_be_loaded_again(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        await control.load("x", source)
        asked = await run_on(control, "x")
        assert (await control.unload("x", ""))[0] == 202
        control.write("a", "two")
        assert (await control.load("x", source))[0] == 200, "it doesn't wait for the old one's requests"
        await let_end(control)
        old = {answer["system_fingerprint"] for _, answer in await asyncio.gather(*asked)}
        assert len(old) == 1 and await control.generation("x") not in old
        await control.settled()
        assert len(control.engine.held) == 1


async def test_an_unload_ends_the_loads_before_it(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        control.engine.pause = 0.1
        first, second = control.write("a", "one"), control.write("b", "two")
        loads = [asyncio.create_task(control.load("x", source)) for source in (first, second)]
        await asyncio.sleep(0.03)
        assert (await control.unload("x"))[0] == 200
        answers = [await load for load in loads]
        assert [(status, answer["error"]["code"]) for status, answer in answers] == [(409, "load_cancelled")] * 2
        assert await control.generation("x") is None
        await control.settled()
        assert not control.engine.held and not control.manager.records
        assert (await control.load("x", first))[0] == 200


async def test_an_unload_waits_for_no_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with controlling(tmp_path) as control:
        goes_on, load_adapter = asyncio.Event(), control.engine.load_adapter

        async def hangs(name: str, path: str) -> Any:
            await goes_on.wait()
            return await load_adapter(name, path)

        monkeypatch.setattr(control.engine, "load_adapter", hangs)
        source = control.write("a", "one")
        load = asyncio.create_task(control.load("x", source))
        await control.at_stage("checking")
        assert (await control.unload("x"))[0] == 200
        assert (await load)[1]["error"]["code"] == "load_cancelled"
        assert not control.engine.held and control.manager.busy, "the engine is still at it"
        goes_on.set()
        assert (await control.load("x", source))[0] == 200
        await control.settled()
        assert sum(control.engine.held.values()) == 1, "what came too late was given back"


async def test_an_unload_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, obtain = threading.Event(), AdapterCache.obtain

    def hangs(*arguments: Any, **options: Any) -> Any:
        assert there.wait(20)
        return obtain(*arguments, **options)

    async with controlling(tmp_path) as control:
        monkeypatch.setattr(AdapterCache, "obtain", hangs)
        source = control.write("a", "one")
        load = asyncio.create_task(control.load("x", source))
        await control.at_stage("fetching")
        assert (await control.unload("x"))[0] == 200
        assert (await load)[1]["error"]["code"] == "load_cancelled"
        there.set()
        await control.settled()
        assert (await control.load("x", source))[0] == 200


async def test_an_unload_waits_for_no_other_names_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same content: the load that the unload ends has it last, and the other name's requests still run on it."""
    there, keep = threading.Event(), StateFile.keep

    def hangs(file: StateFile, name: str, *arguments: str) -> None:
        assert name != "x" or there.wait(20)
        keep(file, name, *arguments)

    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        await control.load("y", source)
        asked = await run_on(control, "y")
        monkeypatch.setattr(StateFile, "keep", hangs)
        control.engine.pause = 0.2
        load = asyncio.create_task(control.load("x", source))
        await control.at_stage("checking")
        assert (await control.unload("y", ""))[0] == 202
        async with asyncio.timeout(20):
            while not control.engine.held:
                await asyncio.sleep(0.002)
        unload = asyncio.create_task(control.unload("x", "wait_seconds=5"))
        await asyncio.sleep(0.05)
        there.set()
        assert (await load)[1]["error"]["code"] == "load_cancelled"
        assert (await unload)[0] == 200 and control.engine.running == 3
        await let_end(control)
        assert {(await one)[0] for one in asked} == {200}
        await control.settled()
        assert not control.engine.held


async def test_an_unloads_deadline_is_its_own_requests(tmp_path: Path) -> None:
    """The same content, loaded again before the deadline: who came after it isn't meant."""
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        await control.load("x", source)
        old = await run_on(control, "x", tokens=20)
        assert (await control.unload("x", "within_seconds=0.3"))[0] == 202
        assert (await control.load("x", source))[0] == 200
        new = asyncio.create_task(control.client.post("/v1/completions", model="x", prompt="hi", max_tokens=20))
        await asyncio.sleep(0.5)
        control.engine.step()
        assert {(await one)[0] for one in old} == {503}
        await let_end(control)
        assert (await new)[0] == 200


async def test_a_drain_waits_for_its_own_requests_only(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        await control.load("x", source)
        old = await run_on(control, "x", tokens=3)
        _, operation = await control.unload("x", "")
        await control.load("x", source)
        control.engine.script = lambda request: [97] * 1000
        new = asyncio.create_task(control.client.post("/v1/completions", model="x", prompt="hi", max_tokens=100))
        for _ in range(6):
            await asyncio.sleep(0.01)
            control.engine.step()
        assert {(await one)[0] for one in old} == {200}
        _, ended = await control.ask("GET", f"/v1/operations/{operation['id']}?wait_seconds=5")
        assert ended["state"] == "succeeded"
        await let_end(control)
        await new


async def test_an_unload_ends_requests_of_older_versions_too(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
        old = await run_on(control, "x", tokens=50)
        await control.load("x", control.write("b", "two"), reload=True)
        assert (await control.unload("x", "within_seconds=0"))[0] in (200, 202)
        await asyncio.sleep(0.05)
        control.engine.step()
        assert {(await one)[0] for one in old} == {503}
        await let_end(control)
