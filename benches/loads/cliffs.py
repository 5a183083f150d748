"""Where other engines fall off (docs/faults.md, group 13): the first request after a load, twice as many adapters as
have room, and what streams notice of large loads."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
from others import KEY
from zipf import OUTPUT, PROMPT, pool_pages

from lorad.bench.adapters import write_random
from lorad.bench.figures import Figures, figures
from lorad.bench.lengths import Uniform
from lorad.bench.run import run
from lorad.bench.traffic import Traffic, asks
from lorad.config import EngineConfig, ServerConfig
from lorad.engine.engine import Engine
from lorad.models.open import open_model
from lorad.server.run import Server

RANKS = (8, 16, 64)
ROOM = 8
LARGE, LARGE_RANK = 10, 64
STREAMS, STREAM_TOKENS = 8, 400


async def measure_firsts_and_gaps(model: Path, folder: Path, repeats: int) -> dict[str, dict[str, list[float]]]:
    """`first` and `second` TTFT in ms after a load, by rank; and `usual` and `beside loads`: the worst gap in ms of any
    of eight streams."""
    config = open_model(model).config
    made = {f"r{rank}": write_random(folder / f"first{rank}", config, rank, rank) for rank in RANKS}
    made |= {f"hot{n}": write_random(folder / f"stream{n}", config, 16, 50 + n) for n in range(STREAMS)}
    made |= {f"large{n}": write_random(folder / f"large{n}", config, LARGE_RANK, 80 + n) for n in range(LARGE)}
    server = Server(
        EngineConfig(model=str(model), enable_prefix_caching=False),
        ServerConfig(
            port=0,
            served_model_name="base",
            control_key=KEY,
            adapter_roots=[str(folder)],
            state_file=str(folder / "cliffs.sqlite"),
        ),
    )
    url = await server.start()
    found: dict[str, dict[str, list[float]]] = {}
    dice = random.Random(0)
    try:
        async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
            for number in range(STREAMS):
                await _load(session, f"hot{number}", made[f"hot{number}"])
                await _stream(session, f"hot{number}", dice, 4)
            for repeat in range(repeats):
                for rank in RANKS:
                    name = f"r{rank}"
                    await _load(session, name, made[name])
                    for kind in ("first", "second"):
                        came = await _stream(session, name, dice, 2)
                        found.setdefault(name, {}).setdefault(kind, []).append(came[0])
                    await _unload(session, name)
                for kind in ("usual", "beside loads") if repeat % 2 else ("beside loads", "usual"):
                    streams = [
                        asyncio.create_task(_stream(session, f"hot{n}", dice, STREAM_TOKENS)) for n in range(STREAMS)
                    ]
                    await asyncio.sleep(1.0)
                    if kind != "usual":
                        for number in range(LARGE):
                            await _load(session, f"large{number}", made[f"large{number}"])
                            await _stream(session, f"large{number}", dice, 1)
                            await _unload(session, f"large{number}")
                    told = await asyncio.gather(*streams)
                    # The first gaps are those of the other streams' prompts.
                    worst = max(b - a for came in told for a, b in pairwise(came[8:]))
                    found.setdefault("gaps", {}).setdefault(kind, []).append(worst)
    finally:
        await server.stop()
    return found


async def _stream(session: aiohttp.ClientSession, model: str, dice: random.Random, tokens: int) -> list[float]:
    """ms after the request at which its tokens came."""
    body: dict[str, Any] = {"model": model, "prompt": [dice.randrange(1000, 40000) for _ in range(64)]}
    body |= {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    began, came = time.perf_counter(), []
    async with session.post("/v1/completions", json=body) as reply:
        async for line in reply.content:
            if line.startswith(b"data: {"):
                if "error" in (event := json.loads(line[6:])):
                    raise RuntimeError(str(event["error"]))
                came.append((time.perf_counter() - began) * 1e3)
    return came


async def _load(session: aiohttp.ClientSession, name: str, source: Path) -> None:
    body = {"source": str(source), "wait_seconds": 60}
    headers = {"Authorization": f"Bearer {KEY}"}
    async with session.put(f"/v1/lora_adapters/{name}", json=body, headers=headers) as reply:
        if reply.status != 200:
            raise RuntimeError(await reply.text())


async def _unload(session: aiohttp.ClientSession, name: str) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with session.delete(f"/v1/lora_adapters/{name}?wait_seconds=60", headers=headers) as reply:
        await reply.read()


def measure_slots(model: Path, adapters: list[Path], rate: float, repeats: int) -> dict[str, list[Figures]]:
    """The same load over as many adapters as have room, and over twice as many."""
    with closing(Engine(str(model), threads=0)) as probe:
        probe.load_adapter("x", str(adapters[0]))
        pages, page_bytes = probe.adapters.names["x"].pages, probe.worker.geometry.page_bytes
    pool = pool_pages(pages, ROOM, 16) * page_bytes
    found: dict[str, list[Figures]] = {}
    engine = Engine(str(model), kv_cache_memory_bytes=pool, max_num_seqs=32, enable_prefix_caching=False)
    with closing(engine):
        for number, path in enumerate(adapters[: 2 * ROOM]):
            engine.load_adapter(f"a{number}", str(path))
        for repeat in range(repeats + 1):
            for count in (ROOM, 2 * ROOM):
                traffic = Traffic(128, rate, Uniform(PROMPT, PROMPT), Uniform(OUTPUT, OUTPUT), zipf=0.0, seed=repeat)
                made = run(engine, asks(traffic, count, engine.weights.config.vocab), lambda k: f"a{k}")
                if repeat:  # the first one warms
                    found.setdefault(str(count), []).append(figures(made))
    return found
