"""Requests at the times and for the adapters that the simulator draws, and what their clients see."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import aiohttp
import msgspec

VOCAB = range(1000, 40_000)
"""Plain tokens of the base."""
TIMEOUT = aiohttp.ClientTimeout(total=120)


class Seen(NamedTuple):
    """One request. Seconds; times from the run's beginning."""

    at: float
    adapter: int
    ttft: float
    """To the first token; of a failure, to its end."""
    code: str
    """Of the failure; "": it was answered."""
    began: bool
    """Something of the answer had come."""
    service: float
    """From when it ran to its first token, as the server says; 0: it doesn't."""
    load: float
    tier: str
    way: float
    """Of the time to the first token: outside of the server."""


async def play(
    address: str,
    asked: Sequence[tuple[int, int]],
    prompt: tuple[int, int],
    *,
    name: Callable[[float, int], str],
    seed: int,
    on_seen: Callable[[Seen], None] = lambda seen: None,
) -> list[Seen]:
    """Sends each of (µs, adapter) at its time. `prompt`: tokens, least and most. `name(seconds, adapter)`: the model
    that is asked."""
    rng = random.Random(seed)
    prompts = [_prompt(rng, prompt) for _ in asked]
    began = time.perf_counter()
    tasks = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=TIMEOUT) as session:

        async def one(at: float, adapter: int, ids: list[int]) -> Seen:
            seen = await ask(session, address, name(at, adapter), ids, at, adapter)
            on_seen(seen)
            return seen

        for (at_us, adapter), ids in zip(asked, prompts, strict=True):
            await asyncio.sleep(max(0.0, began + at_us / 1e6 - time.perf_counter()))
            tasks.append(asyncio.create_task(one(at_us / 1e6, adapter, ids)))
        return list(await asyncio.gather(*tasks))


async def ask(
    session: aiohttp.ClientSession, address: str, model: str, ids: list[int], at: float, adapter: int
) -> Seen:
    """One request of one token."""
    body: dict[str, Any] = {
        **{"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0.0, "ignore_eos": True},
        **{"stream": True, "explain": True},
    }
    began = time.perf_counter()
    first, told, code = 0.0, {}, ""
    try:
        async with session.post(f"{address}/v1/completions", json=body) as answer:
            if answer.status != 200:
                code = msgspec.json.decode(await answer.read())["error"]["code"]
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    first = first or time.perf_counter() - began
                    event = msgspec.json.decode(line[6:])
                    code = code or event.get("error", {}).get("code", "")
                    told = event.get("lorad", [told])[0]
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        code = type(error).__name__
    ttft = first or time.perf_counter() - began
    ran = told.get("first_token_seconds") or 0.0
    queue, load = told.get("queue_seconds") or 0.0, told.get("load_seconds") or 0.0
    return Seen(at, adapter, ttft, code, bool(first), max(ran - queue, 0.0), load, told.get("tier") or "", ttft - ran)


def _prompt(rng: random.Random, tokens: tuple[int, int]) -> list[int]:
    return [rng.choice(VOCAB) for _ in range(rng.randint(*tokens))]


async def service_seconds(urls: Sequence[str], prompt: tuple[int, int], each: int, seed: int) -> float:
    """What a prompt takes while every replica has one at any time: seconds, the mean; the first third isn't counted."""
    rng = random.Random(seed)

    async def stay(session: aiohttp.ClientSession, url: str) -> list[float]:
        took = []
        for _ in range(each):
            seen = await ask(session, url, "base", _prompt(rng, prompt), 0.0, 0)
            if seen.code:
                raise SystemExit(f"{url} answers {seen.code}")
            took.append(seen.ttft)
        return took[each // 3 :]

    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        found = await asyncio.gather(*(stay(session, url) for url in urls))
    return fmean(one for some in found for one in some)
