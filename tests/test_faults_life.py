"""Known ways in which loads and unloads go wrong (6), on a real server process: races, leaks, half-states.

The numbers in the names are the catalogue's; the table from entry to test is docs/faults.md. The server is
deterministic: an answer is the same bits whatever else goes on.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from safetensors.torch import load_file, save_file

from lorad.bench.adapters import copy_changed
from lorad.models.open import open_model
from make_adapter import make_adapter
from storm import Storm
from storm_world import MODULES, TOKENS, World, make_world

pytestmark = pytest.mark.slow
LONG = 48


@pytest.fixture(scope="module")
def world(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(smollm2_gguf, tmp_path_factory.mktemp("world"), contents=6)


class Server:
    """A server process and a client of it."""

    def __init__(self, storm: Storm, session: aiohttp.ClientSession) -> None:
        self.storm = storm
        self.world = storm.world
        self.session = session

    async def load(self, name: str, source: str, **fields: Any) -> tuple[int, Any]:
        path = f"/v1/lora_adapters/{name}"
        return await self.storm.ask(self.session, "PUT", path, source=source, wait_seconds=60, **fields)

    async def unload(self, name: str, query: str = "wait_seconds=60") -> int:
        return (await self.storm.ask(self.session, "DELETE", f"/v1/lora_adapters/{name}?{query}"))[0]

    async def ask(self, model: str, prompt: int = 0, *, tokens: int = TOKENS, n: int = 1) -> tuple[int, Any]:
        body = {"model": model, "prompt": self.world.prompts[prompt], "max_tokens": tokens, "n": n}
        body |= {"temperature": 0, "ignore_eos": True}
        async with self.session.post(self.storm.url + "/v1/completions", json=body) as response:
            return response.status, json.loads(await response.read())

    async def text(self, model: str, prompt: int = 0, *, tokens: int = TOKENS) -> str:
        status, answer = await self.ask(model, prompt, tokens=tokens)
        assert status == 200, answer
        return str(answer["choices"][0]["text"])

    def right(self, content: int, prompt: int = 0) -> str:
        """What a content says."""
        return self.world.texts[self.world.generations[content], prompt]

    def source(self, content: int) -> str:
        return str(self.world.root / f"content {content}")


@pytest.fixture
async def server(world: World, tmp_path: Path) -> AsyncIterator[Server]:
    storm = Storm(world, tmp_path, 0)
    await storm.start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Server(storm, session)
    await storm.stop()


async def test_loads_and_unloads_beside_streams_change_nothing_6_2(server: Server) -> None:
    for content in (0, 1):
        await server.load(f"a{content}", server.source(content))
    models = ["base", "a0", "a1"]
    alone = {model: await server.text(model, tokens=LONG) for model in models}
    streams = [asyncio.create_task(server.text(models[k % 3], tokens=LONG)) for k in range(12)]
    for number in range(12):
        assert (await server.load(f"other-{number % 3}", server.source(2 + number % 4), reload=True))[0] == 200
        if number % 2:
            assert await server.unload(f"other-{number % 3}") == 200
    assert [await stream for stream in streams] == [alone[models[k % 3]] for k in range(12)]


def damage(kind: str, source: Path, to: Path) -> str:
    """A folder that can't be loaded."""
    shutil.copytree(source, to)
    tensors = load_file(to / "adapter_model.safetensors")
    first = next(iter(tensors))
    match kind:
        case "nan":
            tensors[first][0, 0] = float("nan")
        case "shape":
            tensors[first] = torch.zeros(3, 5)
        case "missing":
            (to / "adapter_model.safetensors").unlink()
            return str(to)
        case "cut":
            data = (to / "adapter_model.safetensors").read_bytes()
            (to / "adapter_model.safetensors").write_bytes(data[: len(data) // 2])
            return str(to)
    save_file(tensors, to / "adapter_model.safetensors")
    return str(to)


async def test_bad_adapters_disturb_nobody_and_a_mended_one_loads_6_1_and_6_11(server: Server) -> None:
    await server.load("a", server.source(0))
    alone = await server.text("a", tokens=LONG)
    for kind in ("nan", "shape", "missing", "cut"):
        running = [asyncio.create_task(server.text("a", tokens=LONG)) for _ in range(3)]
        folder = server.world.root / f"bad {kind}"
        status, answer = await server.load(f"bad-{kind}", damage(kind, Path(server.source(1)), folder))
        assert status == 400 and answer["error"]["message"], kind
        assert (await server.ask(f"bad-{kind}"))[0] == 404
        assert [await one for one in running] == [alone] * 3
        shutil.rmtree(folder)
        shutil.copytree(server.source(1), folder)
        assert (await server.load(f"bad-{kind}", str(folder)))[0] == 200
        assert await server.text(f"bad-{kind}") == server.right(1)
        shutil.rmtree(folder)


async def test_parallel_samples_dont_upset_an_unload_6_6(server: Server) -> None:
    for _ in range(3):
        await server.load("a", server.source(0))
        answers = await asyncio.gather(*(server.ask("a", n=4) for _ in range(7)))
        assert {choice["text"] for _, answer in answers for choice in answer["choices"]} == {server.right(0)}
        async with asyncio.timeout(20):
            assert await server.unload("a") == 200
    assert await server.text("base") == server.world.texts[server.world.base_digest, 0]


async def test_an_unload_races_with_requests_6_7(server: Server) -> None:
    dice, full = random.Random(5), None
    for number in range(20):
        await server.load("a", server.source(0))
        full = full or await server.text("a", tokens=LONG)
        running = [asyncio.create_task(server.ask("a", tokens=LONG)) for _ in range(2)]
        await asyncio.sleep(dice.random() * 0.3)
        assert await server.unload("a", dice.choice(["wait_seconds=60", "within_seconds=0&wait_seconds=60"])) == 200
        for status, answer in await asyncio.gather(*running):
            if status == 200:
                assert answer["choices"][0]["text"] == full, number
            else:
                assert answer["error"]["code"] in ("adapter_unloaded", "model_not_found"), answer


@pytest.mark.parametrize("resident", [True, False])
async def test_a_reload_has_the_new_weights_at_once_6_13(server: Server, tmp_path: Path, resident: bool) -> None:
    folder = server.world.root / f"x {resident}"
    shutil.copytree(server.source(0), folder)
    await server.load("x", str(folder))
    assert await server.text("x", 3) == server.right(0, 3)
    if not resident:
        config = open_model(server.world.base).config
        big = make_adapter(server.world.root / f"big {resident}", config, rank=16, modules=MODULES, seed=90)
        for number in range(8):  # so many that x loses its pages
            path = copy_changed(big, server.world.root / f"big {resident} {number}", number)
            assert (await server.load(f"big-{number}", str(path)))[0] == 200
            for _ in range(3):
                await server.ask(f"big-{number}")
        _, card = await server.storm.ask(server.session, "GET", "/v1/lora_adapters/x")
        assert card["tier"] == "cold"
    shutil.rmtree(folder)
    shutil.copytree(server.source(1), folder)
    assert (await server.load("x", str(folder), reload=True))[0] == 200
    assert await server.text("x", 3) == server.right(1, 3)
    assert await server.unload("x") == 200
    shutil.rmtree(folder)
    shutil.copytree(server.source(2), folder)
    assert (await server.load("x", str(folder)))[0] == 200
    assert await server.text("x", 3) == server.right(2, 3)
