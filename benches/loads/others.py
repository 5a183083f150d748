"""What others notice of loads: their TTFT with and without adapters being loaded and unloaded beside them, by turns."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import aiohttp

from lorad.bench.figures import rank
from lorad.config import EngineConfig, ServerConfig
from lorad.server.run import Server

KEY = "bench"
RATE = 4.0
"""Requests a second, Poisson: far below what the server can, so that queues don't hide what loads cost."""
LOAD_EVERY_S = 0.5
HOT = 8
PROMPT, OUTPUT = 64, 8


async def measure_others(
    model: Path, hot: list[Path], cold: list[Path], folder: Path, seconds: float, repeats: int
) -> dict[str, list[list[float]]]:
    """TTFTs in ms of each repeat, `alone` and `beside loads`. `cold` are loaded and unloaded one after the other."""
    config = ServerConfig(
        port=0,
        served_model_name="base",
        lora_modules=[f"hot-{number}={path}" for number, path in enumerate(hot)],
        control_key=KEY,
        adapter_roots=[str(folder)],
        state_file=str(folder / "state.sqlite"),
    )
    server = Server(EngineConfig(model=str(model), enable_prefix_caching=False), config)
    url = await server.start()
    found: dict[str, list[list[float]]] = {"alone": [], "beside loads": []}
    loads = 0
    try:
        async with aiohttp.ClientSession(base_url=url, connector=aiohttp.TCPConnector(limit=0)) as session:
            await _traffic(session, 3.0, 0)
            for repeat in range(repeats):
                for kind in ("alone", "beside loads") if repeat % 2 else ("beside loads", "alone"):
                    loading = asyncio.create_task(_load(session, cold)) if kind != "alone" else None
                    found[kind].append(await _traffic(session, seconds, repeat))
                    if loading is not None:
                        loading.cancel()
                        loads += len(await asyncio.gather(loading, return_exceptions=True))
    finally:
        await server.stop()
    return found


async def _traffic(session: aiohttp.ClientSession, seconds: float, seed: int) -> list[float]:
    dice, loop = random.Random(seed), asyncio.get_running_loop()
    tasks, at = [], loop.time()
    ends = at + seconds
    while (at := at + dice.expovariate(RATE)) < ends:
        await asyncio.sleep(max(0.0, at - loop.time()))
        body = {
            "model": f"hot-{dice.randrange(HOT)}",
            "prompt": [dice.randrange(1000, 40000) for _ in range(PROMPT)],
            "max_tokens": OUTPUT,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        tasks.append(asyncio.create_task(_first(session, body)))
    return list(await asyncio.gather(*tasks))


async def _first(session: aiohttp.ClientSession, body: dict[str, Any]) -> float:
    """ms from the request to its first token."""
    began, first = time.perf_counter(), None
    async with session.post("/v1/completions", json=body) as reply:
        async for line in reply.content:
            if line.startswith(b"data: {"):
                if "error" in (event := json.loads(line[6:])):
                    raise RuntimeError(str(event["error"]))
                first = first or time.perf_counter()
    if first is None:
        raise RuntimeError(f"HTTP {reply.status}")
    return (first - began) * 1e3


async def _load(session: aiohttp.ClientSession, cold: list[Path]) -> None:
    """Loads and unloads, on and on. The cache has the files after the first round: then it's checks and packing."""
    headers, number = {"Authorization": f"Bearer {KEY}"}, 0
    while True:
        began = time.perf_counter()
        path = f"/v1/lora_adapters/cold-{number}"
        body = {"source": str(cold[number % len(cold)]), "wait_seconds": 60}
        async with session.put(path, json=body, headers=headers) as reply:
            if reply.status != 200:
                raise RuntimeError(await reply.text())
        async with session.delete(path, headers=headers) as reply:
            await reply.read()
        number += 1
        await asyncio.sleep(max(0.0, LOAD_EVERY_S - (time.perf_counter() - began)))


def percentiles(times: list[float]) -> tuple[float, float]:
    """p50 and p99."""
    return rank(times, 0.5), rank(times, 0.99)
