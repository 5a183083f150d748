"""`model` as BASE:ADAPTER: the adapter, unless somebody has that very name."""

from __future__ import annotations

from pathlib import Path

from asking import CHAT, COMPLETIONS, GOOD, refused
from controlling import controlling
from serving import Client, serving


async def served_by(client: Client, model: str) -> str:
    """The name that an answer tells; "" if there is none."""
    answers = [await client.post(path, **{**GOOD[path], "model": model}) for path in (CHAT, COMPLETIONS)]
    assert len({status for status, _ in answers}) == 1
    for answer in answers:
        if answer[0] != 200:
            assert refused(answer, status=404)["code"] == "model_not_found"
    return str(answers[0][1].get("model", ""))


async def test_the_adapters_name_behind_the_bases() -> None:
    async with serving() as client:
        assert await served_by(client, "base:devil") == "devil"
        assert await served_by(client, "base:org/name:v2") == "org/name:v2"
        for name in ("base:", ":devil", "base:base", "base:nobody", "devil:base", "base=devil", "Base:devil"):
            assert await served_by(client, name) == "", name
        assert await served_by(client, "base:base:devil") == ""
        status, told = await client.post("/tokenize", model="base:devil", prompt="hi")
        assert status == 200 and told["count"] == 2


async def test_an_exact_name_wins() -> None:
    async with serving(adapters=("devil", "base:devil")) as client:
        assert await served_by(client, "base:devil") == "base:devil"
        assert await served_by(client, "base:base:devil") == "base:devil"
        client.front.registry.withdraw("base:devil")
        assert await served_by(client, "base:devil") == "devil"
        client.front.registry.set_alias("base:devil", "devil")
        client.front.registry.set_alias("base:other", "devil")
        client.front.registry.withdraw("devil")
        assert await served_by(client, "base:devil") == "", "an alias of nothing is a name all the same"


async def test_a_base_with_a_colon_and_an_alias() -> None:
    async with serving(base="org:base") as client:
        client.front.registry.set_alias("now", "devil")
        assert await served_by(client, "org:base:devil") == "devil"
        assert await served_by(client, "org:base:now") == "devil"
        assert await served_by(client, "org:devil") == ""


async def test_of_a_registry_the_adapter_comes_on_demand(tmp_path: Path) -> None:
    async with controlling(tmp_path, adapter_registry=str(tmp_path / "root"), adapter_roots=[]) as control:
        control.write("acme", "one")
        assert await served_by(control.client, "base:acme") == "acme"
        assert await served_by(control.client, "base:nobody") == ""


async def test_a_name_that_failed_isnt_another_adapter(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        assert (await control.load("devil", control.write("a", "one")))[0] == 200
        assert (await control.load("base:devil", control.write("b", "two")))[0] == 200
    async with controlling(tmp_path, restores=False) as control:
        assert await served_by(control.client, "base:devil") == "base:devil", "it's waited for"
    for file in (tmp_path / "adapters").rglob("*"):
        if file.is_file() and file.read_bytes() == b"two":
            file.unlink()
    for file in (tmp_path / "root" / "b").iterdir():
        file.unlink()
    async with controlling(tmp_path) as control:
        assert (await control.card("base:devil"))["state"] == "failed"
        assert await served_by(control.client, "base:devil") == ""
        assert await served_by(control.client, "devil") == "devil"
