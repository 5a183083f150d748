"""Known ways in which names go wrong (group 8 of docs/faults.md), black-box over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from asking import BOTH, GOOD
from controlling import ADAPTERS, controlling
from serving import serving

COMPLETIONS = "/v1/completions"


@BOTH
@pytest.mark.parametrize(
    "name", ["devils", "Devil", "devil ", " devil", "DEVIL", "de\u0301vil", "devil\x00", "../devil"]
)
async def test_an_unknown_name_is_nobodys_8_1(path: str, name: str) -> None:
    async with serving() as client:
        status, body = await client.post(path, **{**GOOD[path], "model": name})
        assert status == 404 and body["error"]["code"] == "model_not_found" and body["error"]["param"] == "model"
        status, body = await client.post(path, **{**GOOD[path], "model": ""})
        assert status == 400 and body["error"]["param"] == "model"
        assert client.engine.submitted == []


async def test_unknown_names_disturb_no_stream_8_2() -> None:
    async with serving() as client:
        client.engine.auto = False
        stream = asyncio.create_task(client.stream(COMPLETIONS, model="devil", prompt="hi", max_tokens=2))
        while not client.engine.running:
            await asyncio.sleep(0.002)
        client.engine.step()
        answers = await asyncio.gather(
            *(client.post(COMPLETIONS, model=f"nobody-{number}", prompt="hi") for number in range(100))
        )
        assert {status for status, _ in answers} == {404}
        assert client.engine.running == 1
        client.engine.auto = True
        client.engine.step()
        assert (await stream).endswith(b"data: [DONE]\n\n")


async def test_the_list_is_right_as_soon_as_a_call_has_answered_8_5(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source, ends, seen = control.write("x", "content"), False, 0

        async def names() -> list[str]:
            status, body = await control.client.get("/v1/models")
            assert status == 200
            listed = [model["id"] for model in body["data"]]
            assert len(set(listed)) == len(listed) and set(listed) <= {"base", "x"}
            return listed

        async def look() -> None:
            nonlocal seen
            while not ends:
                await names()
                seen += 1

        looking = [asyncio.create_task(look()) for _ in range(10)]
        for _ in range(25):
            assert (await control.load("x", source))[0] == 200
            assert "x" in await names()
            assert (await control.unload("x"))[0] == 200
            assert "x" not in await names()
        ends = True
        await asyncio.gather(*looking)
        assert seen > 50


async def test_no_adapter_is_called_like_the_base_or_an_alias_8_6(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("x", "content")
        assert (await control.load("x", source))[0] == 200
        assert (await control.ask("PUT", "/v1/lora_aliases/prod", target="x"))[0] == 200
        before = [await control.generation(name) for name in ("base", "prod")]
        for name in ("base", "prod"):
            for method, path, fields in (
                ("PUT", f"{ADAPTERS}/{name}", {"source": source, "reload": True}),
                ("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": source}),
            ):
                status, body = await control.ask(method, path, **fields)
                assert status == 400 and body["error"]["code"] == "adapter_name"
        assert (await control.ask("PUT", "/v1/lora_aliases/base", target="x"))[0] == 400
        assert [await control.generation(name) for name in ("base", "prod")] == before
