"""Those who ask, and what has come of it."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any

import aiohttp
from lorad.bench.streams import BASE

BASE_SHARE = 0.15
HANGS_UP = 0.05
CHAT_SHARE = 0.2
STREAM_SHARE = 0.7
BEGINNINGS = 40
"""Beginnings of prompts that are asked again and again, each of one adapter."""
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "nobody", "looks")


@dataclass
class Counts:
    """What has been done so far."""

    answers: int = 0
    hung_up: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0

    def minus(self, other: Counts) -> Counts:
        """What was done since then."""
        return Counts(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def copy(self) -> Counts:
        """As it is now."""
        return replace(self)


@dataclass
class Load:
    """What all clients share."""

    address: str
    adapters: list[str]
    vocab: int
    ends: float
    began: float = field(default_factory=time.perf_counter)
    counts: Counts = field(default_factory=Counts)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The popularity of adapters, by Zipf's law."""
        self.weights = [1 / (rank + 1) for rank in range(len(self.adapters))]


class Asker:
    """One client, which asks as soon as it has been answered."""

    def __init__(self, load: Load, seed: int) -> None:
        """`seed`: of all that it asks."""
        self.load, self.dice = load, Random(seed)

    async def run(self) -> None:
        """Asks until the load ends. A failure is noted and doesn't end it."""
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(self.load.address, timeout=timeout) as session:
            while time.perf_counter() < self.load.ends:
                path, body = self._body()
                try:
                    await self._ask(session, path, body)
                except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                    self.load.failures.append(f"{path} {body['model']}: {type(error).__name__}: {error}")
                    await asyncio.sleep(1)

    def _body(self) -> tuple[str, dict[str, Any]]:
        dice, load = self.dice, self.load
        index = dice.choices(range(len(load.adapters)), load.weights)[0]
        body: dict[str, Any] = {
            "model": BASE if dice.random() < BASE_SHARE else load.adapters[index],
            "max_tokens": dice.choice([8, 32, 64, 128]),
            "ignore_eos": True,
            "stream": dice.random() < STREAM_SHARE,
        }
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        if dice.random() < 0.5:
            body |= {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": dice.randrange(1 << 30)}
        else:
            body["temperature"] = 0
        if dice.random() < CHAT_SHARE:
            said = " ".join(dice.choices(WORDS, k=dice.randint(5, 60)))
            return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": said}]}
        if dice.random() < 0.2:
            body["logprobs"] = 3
        return "/v1/completions", body | {"prompt": self._prompt(index)}

    def _prompt(self, adapter: int) -> list[int]:
        dice, vocab = self.dice, self.load.vocab
        own = [dice.randrange(vocab) for _ in range(dice.choice([8, 32, 64, 200, 400]))]
        if dice.random() < 0.5:
            return own
        beginning = Random(adapter % BEGINNINGS)
        return [beginning.randrange(vocab) for _ in range(96)] + own

    async def _ask(self, session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
        leaves_after = self.dice.randint(1, 8) if body["stream"] and self.dice.random() < HANGS_UP else None
        async with session.post(path, json=body) as reply:
            if reply.status != 200:
                raise ValueError(f"{reply.status}: {(await reply.text())[:200]}")
            if body["stream"]:
                usage = await self._read(reply, leaves_after)
            else:
                usage = (await reply.json())["usage"]
        if usage is None:
            self.load.counts.hung_up += 1
            return
        if usage["completion_tokens"] != body["max_tokens"]:
            raise ValueError(f"{usage['completion_tokens']} of {body['max_tokens']} tokens")
        counts = self.load.counts
        counts.answers += 1
        counts.tokens += usage["completion_tokens"]
        counts.prompt_tokens += usage["prompt_tokens"]
        counts.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    async def _read(self, reply: aiohttp.ClientResponse, leaves_after: int | None) -> dict[str, Any] | None:
        """The usage at a stream's end; None if this client left before."""
        usage, events = None, 0
        async for line in reply.content:
            if not line.startswith(b"data:"):
                continue
            if line[5:].strip() == b"[DONE]":
                if usage is None:
                    raise ValueError("a stream without usage")
                return usage
            event = json.loads(line[5:])
            if "error" in event:
                raise ValueError(str(event["error"])[:200])
            usage, events = event.get("usage") or usage, events + 1
            if leaves_after is not None and events >= leaves_after:
                return None
        raise ValueError("a stream without an end")
