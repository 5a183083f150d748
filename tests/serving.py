"""A server for tests: the real application on a real socket, over a scripted engine and a tokenizer made by hand."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import tokenizers
from aiohttp import web
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from lorad.config import ServerConfig
from lorad.control.manager import AdapterManager
from lorad.control.routes import ControlRoutes
from lorad.observe.tracing import Tracing
from lorad.server.app import Front, make_app
from lorad.server.registry import Registry
from lorad.server.runner import Runner
from lorad.tenants.serving import Tenancy
from lorad.text.model import TextModel
from lorad.text.template import ChatTemplate
from lorad.text.tokenizer import Tokenizer, byte_alphabet
from scripted_engine import ScriptedEngine, adapter_info, model_info

WORDS = ["Ġcat", "Ġsat", "Ġon", "Ġthe", "Ġmat", "The", "hel", "lo", "wor", "ld"]
END, START, TURN = 266, 267, 268
VOCAB = 269
CONTEXT = 128

TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'boom' %}{{ raise_exception('no booms') }}{% endif %}"
    "<turn>{{ m.role }}:{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<turn>{% if mood %}({{ mood }}){% endif %}{% endif %}"
)


def tiny_text() -> TextModel:
    """256 byte tokens in byte order, ten words, three special tokens, a chat template."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    vocab = {letters[byte]: byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        for size in range(2, len(word) + 1):
            part = word[:size]
            if part not in vocab and size < len(word):
                continue
            vocab.setdefault(part, len(vocab))
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True) for name in ("<end>", "<start>", "<turn>")])
    tokenizer = Tokenizer(core, end_ids=[END], eos_token="<end>")
    assert tokenizer.size == VOCAB and core.token_to_id("<end>") == END
    return TextModel(tokenizer, ChatTemplate(TEMPLATE), "tiny")


TEXT = tiny_text()
WORD_IDS = {word.replace("Ġ", " "): 256 + index for index, word in enumerate(WORDS)}


def ids_of(text: str, *, words: bool = True) -> list[int]:
    """Ids of a text: whole words where there are tokens for them, else bytes."""
    ids: list[int] = []
    while text:
        word = next((word for word in WORD_IDS if words and text.startswith(word)), None)
        if word is None:
            ids += text[0].encode()
            text = text[1:]
        else:
            ids.append(WORD_IDS[word])
            text = text[len(word) :]
    return ids


class Client:
    """A server's other side."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str,
        engine: ScriptedEngine,
        front: Front,
        app: web.Application,
    ) -> None:
        self.session = session
        self.address = address
        self.engine = engine
        self.front = front
        self.app = app

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.session.get(self.address + path, **options) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def raw(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"} if headers is None else headers
        async with self.session.post(self.address + path, data=body, headers=headers) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        return await self.raw(path, msgspec.json.encode(fields))

    async def stream(self, path: str, **fields: Any) -> bytes:
        body = msgspec.json.encode({**fields, "stream": True})
        headers = {"Content-Type": "application/json"}
        async with self.session.post(self.address + path, data=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            return await response.read()

    async def alive(self) -> None:
        """Health is good, and base and adapter give their text."""
        assert (await self.get("/health"))[0] == 200
        for model in ("base", "devil"):
            status, answer = await self.post("/v1/completions", model=model, prompt="hi", max_tokens=9)
            assert status == 200 and answer["choices"][0]["text"] == "hi"


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    """A stream's chunks; it must be nothing but events and end with the mark."""
    events = stream.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], stream[-200:]
    assert all(event.startswith("data: ") for event in events[:-1])
    return [msgspec.json.decode(event[6:]) for event in events[:-2]]


@contextlib.asynccontextmanager
async def serving(
    engine: ScriptedEngine | None = None,
    *,
    adapters: tuple[str, ...] = ("devil", "org/name:v2"),
    in_flight_max: int = 1000,
    combined_max: int = 0,
    base: str = "base",
    control: Callable[[Registry, Front, ServerConfig], Awaitable[AdapterManager]] | None = None,
    tenants: Path | None = None,
    tracing: Tracing | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    """A server with a base named `base` and some adapters. `tenants`: a state file that keys are looked up in."""
    engine = engine or ScriptedEngine(info=model_info(VOCAB, CONTEXT))
    config = ServerConfig(**options)
    registry = Registry([base], engine.model, now=lambda: 1700000000.5)
    for name in adapters:
        registry.publish(adapter_info(name))
    numbers = itertools.count(1)
    front = Front(
        engine,
        TEXT,
        registry,
        config,
        in_flight_max=in_flight_max,
        combined_max=combined_max,
        now=lambda: 1700000000.5,
        new_id=lambda: f"{next(numbers):04d}",
        tracing=tracing,
    )
    tenancy = None
    if tenants is not None:
        tenancy = Tenancy(tenants, engine)
        front.ledger = tenancy.ledger
        await tenancy.start(front.limits)
    routes = None if control is None else ControlRoutes(await control(registry, front, config), engine)
    app = make_app(front, routes, tenancy)
    runner = Runner(app, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Client(session, f"http://{host}:{port}", engine, front, app)
    finally:
        await runner.cleanup()
        if tenancy is not None:
            await tenancy.stop()
        await front.close()
