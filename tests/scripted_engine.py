"""Engines that say what a test tells them to: one in process, and one that runs in a real engine process.

What a request gets is decided by a script: a function from the request to the tokens that follow.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from lorad.adapters.chat_template import read_chat_template
from lorad.adapters.combine.weighted import Term, generation_of, spelt
from lorad.config import EngineConfig
from lorad.engine.frames import failure_of
from lorad.engine.handle import Sink
from lorad.engine.messages import (
    AdapterInfo,
    AdapterStats,
    Finished,
    Generate,
    ModelInfo,
    Stats,
    Step,
    Token,
    TokenLogprobs,
    Waits,
)
from lorad.errors import AdapterRejected, InvalidRequest, LoradError, NotFound, Overloaded, Unavailable

Script = Callable[[Generate], list[int]]


def model_info(vocab_size: int = 49152, context_length: int = 512, pages: int = 64) -> ModelInfo:
    """A base model's numbers."""
    return ModelInfo(
        architecture="llama",
        digest="base-digest",
        vocab_size=vocab_size,
        context_length=context_length,
        dtype="float32",
        layers=2,
        weights_bytes=1,
        pages=pages,
        page_tokens=16,
        page_bytes=1024,
    )


def adapter_info(name: str, generation: str = "") -> AdapterInfo:
    """A loaded adapter."""
    return AdapterInfo(
        name=name, generation=generation or f"gen-{name}", rank=8, modules=4, pages=3, bytes=1000, path="/secret/place"
    )


def echo(request: Generate) -> list[int]:
    """The prompt again, then its end."""
    return list(request.prompt)


class Running:
    """One request in the scripted engine."""

    def __init__(self, request: Generate, tokens: list[int]) -> None:
        self.request = request
        self.tokens = tokens
        self.made = 0

    def next(self) -> tuple[Token | None, Token | None, str | None]:
        """One more token, or the one that ends it, and the reason of the end."""
        sampling = self.request.sampling
        if self.made >= len(self.tokens):
            return None, None, "stop"
        token = self.tokens[self.made]
        if token in sampling.stop_token_ids:
            return None, Token(self.request.id, token), "stop"
        self.made += 1
        logprobs = None
        if sampling.logprobs >= 0:
            top = [((token + other) % 49152, -0.5 - other) for other in range(sampling.logprobs)]
            logprobs = TokenLogprobs(-0.5, top)
        return Token(self.request.id, token, logprobs), None, "length" if self.made >= sampling.max_tokens else None


class ScriptedEngine:
    """An `EngineHandle` in process. `auto`: steps by itself; else a test calls `step`."""

    def __init__(self, script: Script = echo, *, info: ModelInfo | None = None, auto: bool = True) -> None:
        self.script = script
        self.model = info or model_info()
        self.fault: LoradError | None = None
        self.dead: LoradError | None = None
        """What calls get; a fault is what requests get."""
        self.life = 0
        self.auto = auto
        self.submitted: list[Generate] = []
        self.aborted: list[int] = []
        self.refuse: LoradError | None = None
        self.stats_now: Stats | None = None
        self.cached_tokens = 0
        self.waits: Waits | None = None
        """What each request is said to have waited for."""
        self.held: Counter[str] = Counter()
        """Loads of each generation that weren't given back."""
        self.pins: Counter[str] = Counter()
        self.tenants: dict[int, tuple[int, int, int, int]] = {}
        """Weight, running_max, waiting_max, pages_max of each that was told."""
        self.hot: set[str] = set()
        self.combined: list[list[Term]] = []
        """What was asked to be combined."""
        self.refuse_combination: Exception | None = None
        self.pause = 0.0
        """Of a load."""
        self.bad = ""
        """A file with this text makes a load fail."""
        self.pins_max = 2
        self.held_max = 1000
        self._running: dict[int, tuple[Running, Sink]] = {}
        self._ended: dict[int, Sink] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """How many requests are in the engine."""
        return len(self._running)

    def submit(self, request: Generate, sink: Sink) -> None:
        if self.fault is not None:
            raise self.fault
        self.submitted.append(request)
        self._running[request.id] = (Running(request, self.script(request)), sink)
        if self.auto and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._go_on())

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)
        if (found := self._running.pop(request_id, None)) is not None:
            self._ended[request_id] = found[1]
            if self.auto and (self._task is None or self._task.done()):
                self._task = asyncio.create_task(self._go_on())

    async def load_adapter(self, name: str, path: str) -> AdapterInfo:
        """What's in the folder names the generation."""
        if self.dead is not None:
            raise self.dead
        content = b"".join(file.read_bytes() for file in sorted(Path(path).iterdir()) if file.name[0] != ".")
        life = self.life
        await asyncio.sleep(self.pause)
        if self.dead is not None or self.life != life:
            raise Unavailable("the engine is gone", code="engine_gone")
        if self.bad and self.bad.encode() in content:
            raise AdapterRejected(f"adapter {name!r}: it's {self.bad}", code="adapter_rank")
        info = adapter_info(name, "gen-" + hashlib.sha256(content).hexdigest()[:8])
        if len(self.held) >= self.held_max and info.generation not in self.held:
            raise Unavailable(f"{self.held_max} adapters are registered", code="adapters_full")
        self.held[info.generation] += 1
        return structs.replace(info, life=life, chat_template=read_chat_template(path))

    async def combine_adapters(self, terms: Sequence[Term]) -> AdapterInfo:
        self.combined.append(list(terms))
        await asyncio.sleep(self.pause)
        if self.refuse_combination is not None:
            raise self.refuse_combination
        info = adapter_info(spelt(terms), generation_of(terms))
        self.held[info.generation] += 1
        return info

    async def release_adapter(self, generation: str, *, pinned: bool = False, life: int | None = None) -> None:
        if self.dead is not None or (life is not None and life != self.life):
            return
        assert self.held[generation] > 0
        self.held[generation] -= 1
        self.pins[generation] -= pinned
        if not self.held[generation]:
            del self.held[generation]
            mine = {id for id, (one, _) in self._running.items() if one.request.generation == generation}
            while mine & self._running.keys():
                await asyncio.sleep(0.001)
            self.hot.discard(generation)

    async def pin_adapter(self, generation: str, pinned: bool) -> None:
        if self.dead is not None:
            raise self.dead
        if not self.held[generation]:
            raise NotFound(f"generation {generation!r} isn't registered", code="unknown_generation")
        if pinned and sum(self.pins.values()) >= self.pins_max:
            raise Overloaded(f"at most {self.pins_max} pins", code="pins_full")
        self.pins[generation] += 1 if pinned else -1

    async def prewarm_adapter(self, generation: str) -> None:
        assert self.held[generation] > 0
        if "cold" not in self.bad:
            self.hot.add(generation)

    async def set_tenant(
        self, tenant: int, *, weight: int = 100, running_max: int = 0, waiting_max: int = 0, pages_max: int = 0
    ) -> None:
        self.tenants[tenant] = (weight, running_max, waiting_max, pages_max)

    async def stats(self) -> Stats:
        if self.fault is not None:
            raise self.fault
        states = {generation: AdapterStats("hot", 0, 0, 3) for generation in self.hot}
        return self.stats_now or empty_stats(running=len(self._running), adapters=states)

    def step(self) -> None:
        """One token for each running request."""
        touched = set()
        ended, self._ended = self._ended, {}
        for request_id, sink in ended.items():
            touched.add(sink)
            sink.finished(Finished(request_id, "abort", cached_tokens=self.cached_tokens, waits=self.waits))
        for request_id, (running, sink) in list(self._running.items()):
            if request_id not in self._running:
                continue
            touched.add(sink)
            if self.refuse is not None:
                self._running.pop(request_id)
                failure = failure_of(self.refuse)
                sink.finished(Finished(request_id, "error", failure))
                continue
            token, last, reason = running.next()
            if token is not None:
                sink.token(token)
            if reason is not None and self._running.pop(request_id, None) is not None:
                cached, waits = self.cached_tokens, self.waits
                sink.finished(Finished(request_id, reason, cached_tokens=cached, waits=waits, stop_token=last))
        for sink in touched:
            sink.flush()

    def die(self, error: LoradError) -> None:
        """The engine is gone."""
        self.fault = self.dead = error
        sinks = {request_id: sink for request_id, (_, sink) in self._running.items()} | self._ended
        self._running, self._ended = {}, {}
        for request_id, sink in sinks.items():
            sink.failed(request_id, error)
        for sink in set(sinks.values()):
            sink.flush()

    def start_again(self) -> None:
        """Another one is in its place and knows nothing. Calls are taken, requests from `resume` on."""
        self.life, self.dead = self.life + 1, None
        for known in (self.held, self.pins, self.hot):
            known.clear()

    def resume(self) -> None:
        """Requests are taken again."""
        self.fault = None

    async def _go_on(self) -> None:
        while (self._running or self._ended) and self.auto:
            await asyncio.sleep(0)
            self.step()


def empty_stats(**changed: Any) -> Stats:
    """The numbers of an engine that does little, but for those that are given."""
    little: dict[str, Any] = {
        "running": 0,
        "waiting": 0,
        "pages_total": 64,
        "pages_free": 60,
        "pages_cached": 0,
        "pages_sequences": 1,
        "pages_adapters": 3,
        "preemptions": 0,
        "evictions": 0,
        "page_ins": 1,
        "page_in_bytes": 1000,
        "page_in_seconds": 0.001,
        "steps": 1,
        "adapters": {},
    }
    return Stats(call=0, **{**little, **changed})


class ProcessScript:
    """A `Steppable` for a real engine process. The prompt's first token says how it behaves."""

    DIES, FAILS, SLOW = 13, 14, 15

    def __init__(self, config: EngineConfig, on_progress: Any, on_page_in: Any) -> None:
        on_progress("weights", 1, 2)
        self.model_info = model_info()
        self.waiting: dict[int, Running] = {}
        self.aborted: list[int] = []
        self.adapters: dict[str, AdapterInfo] = {}
        self.pause = float(os.environ.get("SCRIPT_PAUSE", "0.002"))

    def follow(self, grammar: str, *, tenant: int = 0) -> str:
        if "slow" in grammar:
            time.sleep(0.3)
        if "bad" in grammar:
            raise InvalidRequest("grammar: too large", code="grammar", param="grammar")
        if "weird" in grammar:
            raise ValueError("anything")
        return grammar

    def submit(self, request: Generate, matcher: str | None = None) -> None:
        assert matcher == (request.sampling.grammar or None)
        if request.generation and request.generation not in self.adapters:
            raise NotFound("no such generation", code="unknown_generation")
        if request.prompt[0] == self.FAILS:
            raise AdapterRejected("can never fit: 9 pages wanted, 8 in the pool", code="never_fits")
        self.waiting[request.id] = Running(request, [40 + i % 50 for i in range(request.sampling.max_tokens)])

    def abort(self, request_id: int) -> None:
        if self.waiting.pop(request_id, None) is not None:
            self.aborted.append(request_id)

    def prepare_adapter(self, name: str, path: str) -> AdapterInfo:
        time.sleep(float(os.environ.get("SCRIPT_LOAD_PAUSE", "0")))
        if "slow" in path:
            time.sleep(0.3)
        if "bad" in path:
            raise AdapterRejected(f"adapter {name!r}: rank 512, at most 256", code="adapter_rank")
        if "weird" in path:
            raise ValueError("anything")
        return adapter_info(name)

    def combination_parts(self, terms: Sequence[Term]) -> list[Term]:
        if any(term.generation not in self.adapters for term in terms):
            raise NotFound("no such generation", code="unknown_generation")
        return list(terms)

    def prepare_combination(self, parts: list[Term]) -> AdapterInfo:
        return adapter_info(spelt(parts), generation_of(parts))

    def register_adapter(self, prepared: AdapterInfo) -> AdapterInfo:
        self.adapters[prepared.generation] = prepared
        return prepared

    def release_adapter(self, generation: str, *, pinned: bool = False) -> int | None:
        if self.adapters.pop(generation, None) is None:
            raise NotFound("no such generation", code="unknown_generation")
        return None

    def gone(self) -> list[int]:
        return []

    def pin_adapter(self, generation: str, pinned: bool) -> None:
        return None

    def prewarm_adapter(self, generation: str) -> None:
        return None

    def set_tenant(self, tenant: int, *, weight: int, running_max: int, waiting_max: int, pages_max: int) -> None:
        return None

    def use_idle(self) -> bool:
        return False

    def has_work(self) -> bool:
        return bool(self.waiting or self.aborted)

    def stats(self) -> Stats:
        return empty_stats(running=len(self.waiting))

    def step(self) -> Step | None:
        if not self.waiting and not self.aborted:
            return None
        time.sleep(self.pause)
        tokens, finished = [], [Finished(request_id, "abort", cached_tokens=7) for request_id in self.aborted]
        self.aborted.clear()
        for request_id, running in list(self.waiting.items()):
            if running.request.prompt[0] == self.DIES and running.made == 3:
                raise RuntimeError("as asked")
            token, last, reason = running.next()
            if token is not None:
                tokens.append(token)
            if reason is not None:
                del self.waiting[request_id]
                finished.append(Finished(request_id, reason, stop_token=last))
        return Step(tokens, finished)


def process_script(
    config: EngineConfig, on_open: Any, on_progress: Any, on_page_in: Any, *, will_load: bool = False
) -> ProcessScript:
    """The factory that an engine process is given."""
    on_open(model_info().digest)
    return ProcessScript(config, on_progress, on_page_in)


def too_big(config: EngineConfig, **given: Any) -> ProcessScript:
    """A factory whose pool doesn't fit into memory."""
    raise MemoryError("unable to allocate 9 TiB")


def slow_to_load(
    config: EngineConfig, on_open: Any, on_progress: Any, on_page_in: Any, *, will_load: bool = False
) -> ProcessScript:
    """A factory whose model takes longer to load than anybody waits."""
    on_open(model_info().digest)
    on_progress("weights", 1, 2)
    time.sleep(60)
    return ProcessScript(config, on_progress, on_page_in)
