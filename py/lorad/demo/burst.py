"""One mixed burst over HTTP: every model is asked at once, each answer is timed from the client's side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec


@dataclass
class Answer:
    """What one model answered, and how fast as the client saw it."""

    model: str
    text: str = ""
    tokens: int = 0
    ttft_s: float | None = None
    total_s: float = 0.0
    finish: str = ""
    error: str = ""

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the time from the request to the last of them."""
        return self.tokens / self.total_s if self.total_s else 0.0


async def burst(
    url: str,
    models: Sequence[str],
    prompt: str,
    *,
    max_tokens: int,
    api_key: str = "",
    on_update: Callable[[], None] = lambda: None,
    answers: list[Answer] | None = None,
) -> list[Answer]:
    """Sends `prompt` to each of `models` at the same moment and streams the answers into `answers` (in order)."""
    answers = [] if answers is None else answers
    answers[:] = [Answer(model) for model in models]
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with aiohttp.ClientSession(
        url, headers=headers, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=600)
    ) as session:
        await asyncio.gather(*(_ask(session, answer, prompt, max_tokens, on_update) for answer in answers))
    return answers


async def _ask(
    session: aiohttp.ClientSession, answer: Answer, prompt: str, max_tokens: int, on_update: Callable[[], None]
) -> None:
    body = {
        "model": answer.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    async with session.post("/v1/chat/completions", data=msgspec.json.encode(body)) as response:
        if response.status != 200:
            answer.error = msgspec.json.decode(await response.read())["error"]["message"]
            return
        async for line in response.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = msgspec.json.decode(line[6:])
            if "error" in chunk:
                answer.error = chunk["error"]["message"]
                return
            for choice in chunk["choices"]:
                text = choice["delta"].get("content") or ""
                if text and answer.ttft_s is None:
                    answer.ttft_s = time.perf_counter() - started
                answer.text += text
                answer.finish = choice.get("finish_reason") or answer.finish
            if chunk.get("usage"):
                answer.tokens = chunk["usage"]["completion_tokens"]
            answer.total_s = time.perf_counter() - started
            on_update()
