"""The page's files and `GET /v1/overview`, over HTTP: who may see what, and what the figures say."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlling import Control, controlling
from lorad.engine.messages import AdapterStats
from lorad.errors import EngineFailure
from lorad.page import overview
from lorad.page.files import FILES
from lorad.tenants.file import TenantFile
from lorad.tenants.tenant import Tenant
from scripted_engine import adapter_info, empty_stats
from serving import serving

OVERVIEW = "/v1/overview"


async def look(control: Control, query: str = "", key: str = "operator") -> tuple[int, Any]:
    return await control.ask("GET", OVERVIEW + query, key=key)


def adopt(control: Control, *names: str) -> None:
    """Adapters that were loaded by an option of the start."""
    for name in names:
        info = adapter_info(name)
        control.manager.registry.publish(info)
        control.manager.adopt(name, f"/roots/{name}", info)


# files


async def test_files_want_no_key_and_forbid_everything_foreign() -> None:
    async with serving(api_key="sk-right") as client:
        for path, (body, kind) in FILES.items():
            async with client.session.get(client.address + path) as response:
                assert response.status == 200 and await response.read() == body
                assert response.content_type == kind
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
                assert "unsafe" not in policy and "*" not in policy and "require-trusted-types-for 'script'" in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_files_are_whole_and_name_nothing_outside() -> None:
    assert {"/ui", "/ui/main.js", "/ui/page.css", "/ui/icon.svg"} <= FILES.keys()
    linked = set()
    for path, (body, _) in FILES.items():
        text = body.decode()
        outside = set(re.findall(r"https?://[^\s\"'`<)]*", text)) - {"http://www.w3.org/2000/svg"}
        assert not {url for url in outside if "//" in url and url not in ("https://",)}, path
        linked |= {f"/ui/{name}" for name in re.findall(r'from "\./([\w.]+)"', text)}
        linked |= {f"/{name}" for name in re.findall(r'(?:href|src)="(ui/[\w.]+)"', text)}
        assert not re.search(r"\bstyle=|\bon\w+=\"|innerHTML =|insertAdjacent|document\.write|\beval\(", text), path
    assert linked == FILES.keys() - {"/ui"}, "each file is used, and each that is used is there"


# who may see it


async def test_the_overview_is_for_operators(tmp_path: Path) -> None:
    async with controlling(tmp_path, api_key="sk-right") as control:
        for key, status, code in (
            ("", 401, "missing_api_key"),
            ("wrong", 401, "invalid_api_key"),
            ("sk-right", 401, "invalid_api_key"),
        ):
            seen, answer = await look(control, key=key)
            assert (seen, answer["error"]["code"]) == (status, code)
        assert (await look(control))[0] == 200
    async with serving() as client:
        assert (await client.get(OVERVIEW))[1]["error"]["code"] == "control_off"


async def test_a_tenants_key_does_not_open_it(tmp_path: Path) -> None:
    file = TenantFile(tmp_path / "state.sqlite")
    key = file.add_key(file.put(Tenant("acme", 0)).name)[0]
    operator = file.add_key(None)[0]
    file.close()
    async with controlling(tmp_path, tenants=tmp_path / "state.sqlite", control_key="") as control:
        status, answer = await look(control, key=key)
        assert (status, answer["error"]["code"]) == (403, "operators_only")
        status, answer = await look(control, key=operator)
        assert status == 200 and [tenant["name"] for tenant in answer["tenants"]["data"]] == ["acme"]


# what it says


async def test_pages_by_owner(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        adopt(control, "a", "b", "c")
        hot = {"gen-a": AdapterStats("hot", 2, 1, 3), "gen-b": AdapterStats("cold", 0, 0, 0)}
        old = {"gen-old": AdapterStats("draining", 1, 0, 7)}
        control.engine.stats_now = empty_stats(running=3, waiting=1, adapters=hot | old)
        status, answer = await look(control)
        assert status == 200 and answer["tenants"] is None
        assert answer["engine"] | {"running": 3, "waiting": 1, "steps": 1, "preemptions": 0} == answer["engine"]
        pages = answer["pages"]
        assert (pages["total"], pages["free"], pages["sequences"], pages["prefixes"]) == (64, 60, 1, 0)
        assert pages["by_adapter"] == [
            {"names": [], "parts": [], "generation": "gen-old", "pages": 7},
            {"names": ["a"], "parts": [], "generation": "gen-a", "pages": 3},
        ]
        cards = {card["name"]: card for card in answer["adapters"]["data"]}
        assert (cards["a"]["tier"], cards["a"]["running"], cards["a"]["waiting"]) == ("hot", 2, 1)
        assert (cards["a"]["pages"], cards["a"]["pages_held"], cards["b"]["pages_held"]) == (3, 3, 0)
        assert answer["adapters"]["tiers"] == {"hot": 1, "cold": 2}


async def test_adapters_are_filtered_ordered_and_paged(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        names = [f"n{number:04d}" for number in range(5000)]
        adopt(control, *names, "Größe")
        busy = {"gen-n0007": AdapterStats("hot", 1, 0, 3), "gen-n0003": AdapterStats("hot", 4, 2, 3)}
        control.engine.stats_now = empty_stats(adapters=busy)
        _, answer = await look(control)
        found = answer["adapters"]
        assert (found["total"], found["matching"], len(found["data"])) == (5001, 5001, 50)
        for query, matching, first in (
            ("?filter=n00&limit=2", 100, ["n0000", "n0001"]),
            ("?filter=n00&limit=2&offset=99", 100, ["n0099"]),
            ("?filter=N4999", 1, ["n4999"]),
            ("?filter=GRÖSSE", 1, ["Größe"]),
            ("?tier=hot&sort=in_flight", 2, ["n0003", "n0007"]),
            ("?sort=in_flight&limit=3", 5001, ["n0003", "n0007", "Größe"]),
            ("?offset=999999", 5001, []),
            ("?filter=nobody", 0, []),
        ):
            status, answer = await look(control, query)
            found = answer["adapters"]
            assert status == 200 and found["matching"] == matching, query
            assert [card["name"] for card in found["data"]][: len(first) or None] == first, query
        control.manager.registry.use("n0042")
        _, answer = await look(control, "?sort=last_used&limit=1")
        assert answer["adapters"]["data"][0]["name"] == "n0042"
        assert len(msgspec.json.encode(answer)) < 20_000, "whatever there is, an answer is small"


@pytest.mark.parametrize(
    ("query", "field", "told"),
    [
        ("limit=201", "limit", "1 to 200, got '201'"),
        ("limit=0", "limit", "got '0'"),
        ("limit=-1", "limit", "got '-1'"),
        ("limit=", "limit", "got ''"),
        ("offset=1000001", "offset", "0 to 1000000"),
        ("offset=1e3", "offset", "got '1e3'"),
        ("tier=warm", "tier", "got 'warm'"),
        ("sort=size", "sort", "one of name, last_used"),
        ("filter=" + "x" * 257, "filter", "at most 256 characters, got 257"),
        ("page=2", "page", "unknown field: 'page'"),
    ],
)
async def test_a_query_is_refused_by_field(tmp_path: Path, query: str, field: str, told: str) -> None:
    async with controlling(tmp_path) as control:
        status, answer = await look(control, "?" + query)
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (400, "query_field", field)
        assert told in error["message"]


async def test_tokens_and_first_tokens_are_those_that_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controlling(tmp_path) as control:
        adopt(control, "devil")
        for _ in range(3):
            status, _ = await control.client.post("/v1/completions", model="devil", prompt="hihi", max_tokens=4)
            assert status == 200
        async with asyncio.timeout(10):
            while (await look(control))[1]["recent"]["first_tokens"]["count"] < 3:
                await asyncio.sleep(0.1)
        _, answer = await look(control)
        recent = answer["recent"]
        assert sum(recent["tokens"]) == 12 and len(recent["tokens"]) == 60
        assert sum(one["count"] for one in recent["first_tokens_by_second"]) == 3
        assert 0 < recent["first_tokens"]["p50_s"] <= recent["first_tokens"]["p95_s"] < 10
        assert answer["adapters"]["data"][0]["last_used"] == 1700000000.5 <= answer["at"]


async def test_queues_and_waits_by_tenant(tmp_path: Path) -> None:
    file = TenantFile(tmp_path / "state.sqlite")
    keys = {name: file.add_key(file.put(Tenant(name, 0)).name)[0] for name in ("acme", "idle", "umbrella")}
    file.close()
    async with controlling(tmp_path, tenants=tmp_path / "state.sqlite") as control:
        adopt(control, "devil")
        engine = control.engine
        engine.auto = False

        async def complete(whose: str) -> int:
            body = {"model": "devil", "prompt": "hihi", "max_tokens": 3, "n": 2}
            status, _ = await control.ask("POST", "/v1/completions", key=keys[whose], **body)
            return status

        first = asyncio.create_task(complete("acme"))
        while engine.running < 2:
            await asyncio.sleep(0.005)
        engine.step()
        others = [asyncio.create_task(complete(whose)) for whose in ("umbrella", "umbrella", "acme")]
        while engine.running < 8:
            await asyncio.sleep(0.005)
        _, answer = await look(control)
        assert answer["tenants"]["total"] == 3 and answer["engine"]["in_flight"] == 8
        seen = [(one["name"], one["waiting"], one["answering"]) for one in answer["tenants"]["data"]]
        assert seen == [("umbrella", 4, 0), ("acme", 2, 2), ("idle", 0, 0)], "the longest queue first"
        assert [one["longest_wait_s"] > 0 for one in answer["tenants"]["data"]] == [True, True, False]
        engine.auto = True
        engine.step()
        engine._task = asyncio.create_task(engine._go_on())
        assert [await task for task in (first, *others)] == [200] * 4
        async with asyncio.timeout(10):
            while True:
                _, answer = await look(control)
                told = {one["name"]: one for one in answer["tenants"]["data"]}
                if [told[name]["first_tokens"]["count"] for name in ("acme", "umbrella", "idle")] == [4, 4, 0]:
                    break
                await asyncio.sleep(0.1)
        assert told["acme"]["since_start"]["requests"] == 2 and told["idle"]["since_start"]["requests"] == 0
        assert told["acme"]["waiting"] == told["acme"]["answering"] == 0


async def test_operations_are_told_and_few(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        for _ in range(10):
            await control.load("x", source)
            await control.unload("x")
        _, answer = await look(control)
        assert [one["kind"] for one in answer["operations"]] == ["load", "unload"] * 6
        assert {one["state"] for one in answer["operations"]} == {"succeeded"}


async def test_a_failed_adapter_has_its_reason(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
        record = control.manager.record("x")
        record.failure, record.info = EngineFailure("it's gone", code="adapter_load"), None
        _, answer = await look(control, "?tier=failed")
        (card,) = answer["adapters"]["data"]
        assert (card["tier"], card["error"]["message"]) == ("failed", "it's gone")


# the engine


async def test_however_many_look_the_engine_is_asked_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "LOOK_SECONDS", 1000.0)
    async with controlling(tmp_path) as control:
        asked, stats = 0, control.engine.stats

        async def counted() -> Any:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0.05)
            return await stats()

        monkeypatch.setattr(control.engine, "stats", counted)
        leaves = asyncio.create_task(look(control))
        await asyncio.sleep(0.02)
        leaves.cancel()
        answers = await asyncio.gather(*(look(control) for _ in range(20)))
        assert [status for status, _ in answers] == [200] * 20 and asked == 1


async def test_an_engine_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "STATS_SECONDS", 0.05)
    monkeypatch.setattr(overview, "LOOK_SECONDS", 0.0)
    async with controlling(tmp_path) as control:
        ends, stats = asyncio.Event(), control.engine.stats

        async def silent() -> Any:
            await ends.wait()
            return await stats()

        monkeypatch.setattr(control.engine, "stats", silent)
        status, answer = await look(control)
        assert (status, answer["error"]["code"]) == (503, "engine_stalled")
        ends.set()
        assert (await look(control))[0] == 200, "and it comes to itself again"
        control.engine.fault = EngineFailure("it died", code="engine_died")
        status, answer = await look(control)
        assert (status, answer["error"]["code"]) == (500, "engine_died")
