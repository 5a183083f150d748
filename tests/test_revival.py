"""An engine that dies under a server: who is in flight hears of it, and the next engine knows what that one knew."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import psutil
import pytest

from lorad.config import EngineConfig, ServerConfig
from lorad.engine.client import ProcessEngine
from lorad.engine.messages import AdapterInfo
from lorad.errors import Unavailable
from lorad.models.open import open_model
from lorad.server import revival
from lorad.server.run import Server
from lorad.tenants.file import TenantFile
from lorad.tenants.tenant import Limits, Tenant
from make_adapter import make_adapter
from tiny import make_tiny

PROMPT = list(range(5, 40))
KEY = "operator"
CLEAN = {"engine_died", "engine_restarting", "engine_gone"}
"""Codes that a request may get for an engine's death."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def root(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    for number, name in enumerate(("one", "two", "three")):
        make_adapter(root / name, open_model(base).config, rank=8, modules=("q_proj", "down_proj"), seed=number)
    return root


class Running:
    """A server, and how to ask it."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.key = KEY

    async def ask(self, method: str, path: str, *, key: str | None = None, **fields: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        async with self.session.request(method, path, json=fields or None, headers=headers) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())

    async def complete(self, model: str, tokens: int = 6, **more: Any) -> tuple[int, Any]:
        fields = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return await self.ask("POST", "/v1/completions", **fields, **more)

    async def texts(self, *names: str) -> list[tuple[str, str]]:
        """Text and fingerprint of each model's answer."""
        found = []
        for name in names:
            status, body = await self.complete(name)
            assert status == 200, (name, body)
            found.append((body["choices"][0]["text"], body["system_fingerprint"]))
        return found

    def kill(self) -> int:
        """Ends the engine process at once; gives its id."""
        pid = self.server.engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    async def back(self) -> None:
        """Waits until requests are taken again."""
        async with asyncio.timeout(60):
            while (await self.ask("GET", "/health"))[0] == 200:
                await asyncio.sleep(0.01)
            while (await self.ask("GET", "/health"))[0] != 200:
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(base: Path, folder: Path, root: Path, **options: Any) -> AsyncIterator[Running]:
    folder.mkdir(exist_ok=True)
    options = {"control_key": KEY, "adapter_roots": [str(root)], "state_file": str(folder / "state.sqlite"), **options}
    engine = EngineConfig(
        model=str(base), kv_cache_memory_bytes=4 << 20, max_pinned_bytes=1 << 20, max_combined_adapters=2
    )
    server = Server(engine, ServerConfig(port=0, served_model_name="base", **options))
    url = await server.start()
    try:
        async with aiohttp.ClientSession(base_url=url, connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Running(server, session)
    finally:
        await server.stop()


async def load(one: Running, name: str, source: Path, **fields: Any) -> None:
    status, body = await one.ask("PUT", f"/v1/lora_adapters/{name}", source=str(source), wait_seconds=60, **fields)
    assert status == 200, body


async def test_names_pins_aliases_and_combinations_are_back(base: Path, root: Path, tmp_path: Path) -> None:
    modules = [f"named={root / 'three'}"]
    async with running(base, tmp_path / "server", root, lora_modules=modules) as one:
        await load(one, "a", root / "one", pinned=True)
        await load(one, "b", root / "two")
        await load(one, "also-b", root / "two")
        await one.ask("PUT", "/v1/lora_aliases/prod", target="b")
        names = ("base", "a", "b", "also-b", "prod", "named")
        parts = [{"name": "a", "weight": 0.5}, {"name": "named", "weight": 0.5}]
        before = await one.texts(*names)
        combined = await one.complete("base", adapters=parts)
        assert len({text for text, _ in before}) == 4
        dead = one.kill()
        await one.back()
        assert one.server.engine.pid != dead and not psutil.pid_exists(dead)
        assert await one.texts(*names) == before
        again = await one.complete("base", adapters=parts)
        assert [choice["text"] for choice in again[1]["choices"]] == [
            choice["text"] for choice in combined[1]["choices"]
        ]
        status, card = await one.ask("GET", "/v1/lora_adapters/a")
        assert status == 200 and card["pinned"] and card["state"] == "ready"
        await one.ask("DELETE", "/v1/lora_adapters/b?wait_seconds=30")
        assert (await one.texts("also-b"))[0] == before[3]
        assert (await one.complete("b"))[0] == (await one.complete("prod"))[0] == 404
        _, metrics = await one.ask("GET", "/metrics")
        assert "\nlorad:engine_restarts_total 1.0\n" in metrics


async def test_an_adapters_own_template_is_back(base: Path, root: Path, tmp_path: Path) -> None:
    """Of an option and of a load; and a real engine tells what a request waited for."""
    for name in ("one", "two"):
        folder = shutil.copytree(root / name, tmp_path / "own" / name)
        (folder / "chat_template.jinja").write_text(name + ": {{ messages[0].content }}")
    own = tmp_path / "own"
    messages = [{"role": "user", "content": "hi"}]

    async def seen(one: Running, name: str) -> str:
        status, told = await one.ask("POST", "/tokenize", model=name, messages=messages)
        assert status == 200, told
        _, told = await one.ask("POST", "/detokenize", tokens=told["tokens"])
        fields = {"model": name, "messages": messages, "max_tokens": 2, "explain": True, "ignore_eos": True}
        status, answer = await one.ask("POST", "/v1/chat/completions", **fields)
        assert status == 200, answer
        (way,) = answer["lorad"]
        assert way["generation"] == answer["system_fingerprint"] and way["preemptions"] == 0
        assert way["tier"] in ("cold", "loading", "hot") and 0 <= way["load_seconds"] <= way["queue_seconds"]
        assert way["first_token_seconds"] >= way["queue_seconds"]
        return str(told["prompt"])

    async with running(base, tmp_path / "server", own, lora_modules=[f"option={own / 'one'}"]) as one:
        await load(one, "loaded", own / "two")
        for _ in range(2):
            assert await seen(one, "option") == "one: hi"
            assert await seen(one, "loaded") == "two: hi"
            one.kill()
            await one.back()
    async with running(base, tmp_path / "server", own) as one:
        assert await seen(one, "loaded") == "two: hi"


async def test_who_is_in_flight_hears_of_it_and_nothing_is_asked_twice(base: Path, root: Path, tmp_path: Path) -> None:
    async with running(base, tmp_path / "server", root) as one:
        await load(one, "a", root / "one")
        stream = asyncio.create_task(one.complete("a", tokens=400, stream=True))
        whole = asyncio.create_task(one.complete("a", tokens=400))
        async with asyncio.timeout(30):
            while (await one.server.engine.stats()).running < 2:
                await asyncio.sleep(0.01)
        one.kill()
        status, body = await whole
        assert status == 500 and body["error"]["code"] == "engine_died"
        status, text = await stream
        assert status == 200 and text.endswith("data: [DONE]\n\n") and '"code":"engine_died"' in text
        assert '"finish_reason":"' not in text
        status, body = await one.complete("a")
        assert status == 503 and body["error"]["code"] in CLEAN
        assert (await one.ask("GET", "/health"))[0] == 503
        await one.back()
        stats = await one.server.engine.stats()
        assert stats.running == stats.waiting == 0  # what ran when it died doesn't come back
        assert (await one.complete("a"))[0] == 200


async def test_an_adapter_that_was_being_loaded_is_loaded_by_the_next_engine(
    base: Path, root: Path, tmp_path: Path
) -> None:
    async with running(base, tmp_path / "server", root) as one:
        (loader,) = psutil.Process(one.server.engine.pid).children()
        loader.suspend()
        status, operation = await one.ask("PUT", "/v1/lora_adapters/a", source=str(root / "one"))
        assert status == 202
        await asyncio.sleep(0.2)
        one.kill()
        loader.kill()
        await one.back()
        status, body = await one.ask("GET", f"/v1/operations/{operation['id']}?wait_seconds=30")
        assert body["state"] == "failed" and body["error"]["code"] in CLEAN
        assert (await one.complete("a"))[0] == 200  # it's still asked for
        assert (await one.ask("GET", "/v1/lora_adapters/a"))[1]["kept"]


async def test_one_that_dies_while_it_is_told_what_to_know_is_followed_by_another(
    base: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(base, tmp_path / "server", root) as one:
        await load(one, "a", root / "one")
        before = await one.texts("a")
        manager = one.server.manager
        assert manager is not None
        tell, dead = manager.engine_died, list[int]()

        async def dies_once() -> None:
            if not dead:
                dead.append(one.kill())
                while psutil.pid_exists(dead[0]):  # until somebody has noticed
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
            await tell()

        monkeypatch.setattr(manager, "engine_died", dies_once)
        one.kill()
        await one.back()
        assert dead and one.server.engine.pid not in dead
        assert await one.texts("a") == before


async def test_what_the_next_engine_has_loaded_already_is_held_once(
    base: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(base, tmp_path / "server", root) as one:
        manager = one.server.manager
        assert manager is not None
        tell = manager.engine_died

        async def after_a_load() -> None:
            await manager.load("early", str(root / "two")).wait()
            await tell()

        monkeypatch.setattr(manager, "engine_died", after_a_load)
        one.kill()
        await one.back()
        ((_, generation),) = await one.texts("early")
        assert generation in (await one.server.engine.stats()).adapters
        assert (await one.ask("DELETE", "/v1/lora_adapters/early?wait_seconds=30"))[0] == 200
        assert generation not in (await one.server.engine.stats()).adapters


async def test_an_options_adapter_that_is_gone_is_listed_as_failed(base: Path, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "named"
    shutil.copytree(root / "three", folder)
    async with running(base, tmp_path / "server", root, lora_modules=[f"named={folder}"]) as one:
        await one.texts("named")
        shutil.rmtree(folder)
        one.kill()
        await one.back()
        status, card = await one.ask("GET", "/v1/lora_adapters/named")
        assert status == 200 and card["state"] == "failed" and card["error"]["code"] == "adapter_missing"
        assert (await one.complete("named"))[0] == 404
        assert (await one.ask("DELETE", "/v1/lora_adapters/named?wait_seconds=30"))[0] == 200
        assert (await one.ask("GET", "/v1/lora_adapters/named"))[0] == 404


async def test_an_options_adapter_that_is_unloaded_while_it_comes_again_stays_away(
    base: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(base, tmp_path / "server", root, lora_modules=[f"named={root / 'three'}"]) as one:
        ((_, generation),) = await one.texts("named")
        manager, engine = one.server.manager, one.server.engine
        assert manager is not None
        load_adapter = engine.load_adapter

        async def unloaded_meanwhile(name: str, path: str) -> AdapterInfo:
            info = await load_adapter(name, path)
            manager.unload(name)
            return info

        monkeypatch.setattr(engine, "load_adapter", unloaded_meanwhile)
        one.kill()
        await one.back()
        assert (await one.complete("named"))[0] == 404
        assert generation not in (await engine.stats()).adapters


async def test_a_pin_that_the_death_came_before_is_still_asked_for(
    base: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(base, tmp_path / "server", root) as one:
        engine = one.server.engine
        pin_adapter = engine.pin_adapter

        async def after_death(generation: str, pinned: bool) -> None:
            monkeypatch.setattr(engine, "pin_adapter", pin_adapter)
            one.kill()
            while engine.fault is None:
                await asyncio.sleep(0.005)
            await pin_adapter(generation, pinned)

        monkeypatch.setattr(engine, "pin_adapter", after_death)
        await load(one, "a", root / "one", pinned=True)
        async with asyncio.timeout(60):
            while (await one.ask("GET", "/health"))[0] != 200:
                await asyncio.sleep(0.02)
        await one.texts("a")
        assert (await one.ask("GET", "/v1/lora_adapters/a"))[1]["pinned"]


async def test_tenants_keep_their_limits(base: Path, root: Path, tmp_path: Path) -> None:
    state = tmp_path / "server" / "state.sqlite"
    file = TenantFile(state)
    file.put(Tenant("small", 0, limits=Limits(pages_max=3)))
    key = file.add_key("small")[0]
    async with running(base, tmp_path / "server", root, tenants=True, control_key="") as one:
        one.key = key
        for _ in range(2):
            status, body = await one.complete("base", tokens=60)
            assert status == 400 and body["error"]["code"] == "tenant_never_fits"
            one.kill()
            await one.back()


class Fragile:
    """An engine that can be started again at some attempts only."""

    def __init__(self, *starts: bool) -> None:
        self.starts = list(starts)
        self.serves = False

    async def restart(self) -> None:
        if not self.starts.pop(0):
            raise Unavailable("not yet", code="engine_gone")

    def resume(self) -> None:
        self.serves = True


async def test_one_that_dies_again_and_again_is_started_with_pauses() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def nothing() -> None:
        return None

    engine = Fragile(*[False] * 7, True, True, True)
    revived = revival.Revival(cast(ProcessEngine, engine), nothing, sleep=sleep)
    for _ in range(3):  # the second and third deaths come at once
        engine.serves = False
        revived.begin()
        async with asyncio.timeout(10):
            while not engine.serves:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    await revived.stop()


async def test_a_base_that_was_replaced_is_not_served(root: Path, tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base")
    async with running(base, tmp_path / "server", root) as one:
        other = make_tiny(tmp_path / "other", seed=7)
        for file in other.iterdir():
            (base / file.name).write_bytes(file.read_bytes())
        one.kill()
        await asyncio.sleep(4)
        status, body = await one.complete("base")
        assert status == 503 and body["error"]["code"] == "engine_restarting"


async def test_deaths_under_load(base: Path, root: Path, tmp_path: Path) -> None:
    dice, counts, wrong = random.Random(5), Counter[str](), list[Any]()
    async with running(base, tmp_path / "server", root) as one:
        for name in ("one", "two", "three"):
            await load(one, name, root / name)
        names = ("base", "one", "two", "three")
        right = dict(zip(names, await one.texts(*names), strict=True))
        ends = False

        async def client() -> None:
            while not ends:
                name = dice.choice(names)
                status, body = await one.complete(name)
                if status == 200:
                    counts["answers"] += 1
                    found = body["choices"][0]["text"], body["system_fingerprint"]
                    if found != right[name]:
                        wrong.append((name, found))
                elif body["error"]["code"] in CLEAN:
                    counts["refusals"] += 1
                    await asyncio.sleep(0.02)
                else:
                    wrong.append((name, status, body))

        clients = [asyncio.create_task(client()) for _ in range(8)]
        for _ in range(int(os.environ.get("LORAD_DEATHS", "3"))):
            await asyncio.sleep(dice.random())
            one.kill()
            await one.back()
        ends = True
        await asyncio.gather(*clients)
        assert not wrong and counts["answers"] > 20 and counts["refusals"] > 0
        assert await one.texts(*names) == [right[name] for name in names]
