"""One run over HTTP: a stream of server-sent events for each ask, from this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import aiohttp
import msgspec

from lorad.bench.run import NameOf, Run, Times, wrong
from lorad.bench.traffic import Ask
from lorad.errors import LoradError

BASE = "base"
"""The base's name at the bench's servers; no adapter of the bench is called so."""
SILENCE_S = 600.0
"""A stream that says nothing for so long is given up."""
STEPS = b"lorad:steps_total "
"""The line of /metrics that counts an engine's steps."""


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Failure(msgspec.Struct):
    message: str


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Failure | None = None


_decode = msgspec.json.Decoder(_Event).decode


class Answer:
    """What a stream has told so far."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.times = Times(ask.at_s)
        self.reason: str | None = None
        self.usage: _Usage | None = None
        self.whole = False
        self._rest = b""

    def take(self, data: bytes, now: float) -> None:
        """Bytes that came together."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if event == b"data: [DONE]":
                self.whole = True
                continue
            told = _decode(event.removeprefix(b"data: "))
            if told.error is not None:
                raise wrong(f"failed in mid-stream: {told.error.message}")
            self.usage = told.usage or self.usage
            came = self.times.came_s
            for choice in told.choices:
                self.reason = choice.finish_reason or self.reason
                # The end comes with the last token: it's news of its own only where that token has no text.
                if choice.text or (choice.finish_reason and came[-1:] != [now]):
                    came.append(now)

    def checked(self) -> Times:
        """The times of an answer that is whole and as long as it should be."""
        ask, usage = self.ask, self.usage
        if not self.whole or usage is None:
            raise wrong("was answered by a stream without an end")
        self.times.tokens = usage.completion_tokens
        wanted = ("length", ask.output, len(ask.prompt))
        if (self.reason, usage.completion_tokens, usage.prompt_tokens) != wanted:
            raise wrong(
                f"ended by {self.reason} after {usage.completion_tokens} of {ask.output} tokens; its prompt of "
                f"{len(ask.prompt)} was taken for {usage.prompt_tokens}"
            )
        return self.times


def run_streams(address: str, asks: Sequence[Ask], name_of: NameOf) -> Run:
    """Asks everything at its time, each on a connection of its own."""
    import uvloop

    bodies = [_body(ask, name_of(ask.adapter)) for ask in asks]
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(address, asks, bodies))
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        raise wrong(f"wasn't answered: {type(error).__name__}: {error}") from None


def _body(ask: Ask, model: str) -> bytes:
    return msgspec.json.encode(
        {
            "model": model or BASE,
            "prompt": ask.prompt,
            "max_tokens": ask.output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def _run(address: str, asks: Sequence[Ask], bodies: Sequence[bytes]) -> Run:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
    headers = {"Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(address, headers=headers, connector=connector, timeout=timeout) as session:
        before = await _steps(session)
        begin = time.perf_counter()
        streams = [_stream(session, ask, body, begin) for ask, body in zip(asks, bodies, strict=True)]
        times = await asyncio.gather(*streams)
        return Run(times, await _steps(session) - before)


async def _stream(session: aiohttp.ClientSession, ask: Ask, body: bytes, begin: float) -> Times:
    answer = Answer(ask)
    if (early := ask.at_s - (time.perf_counter() - begin)) > 0:
        await asyncio.sleep(early)
    async with session.post("/v1/completions", data=body) as response:
        if response.status != 200:
            raise wrong(f"was answered with {response.status}: {(await response.text())[:300]}")
        async for data in response.content.iter_any():
            answer.take(data, time.perf_counter() - begin)
    return answer.checked()


async def _steps(session: aiohttp.ClientSession) -> int:
    async with session.get("/metrics") as response:
        lines = (await response.read()).splitlines()
    for line in lines:
        if line.startswith(STEPS):
            return int(float(line.removeprefix(STEPS)))
    raise LoradError("the bench's server has lost its engine", code="bench_server")
