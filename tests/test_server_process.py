"""The engine process and `serve`, for real: start, death, refusals, signals; the engine itself is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lorad.config import EngineConfig, ServerConfig
from lorad.engine import client
from lorad.engine.client import ProcessEngine
from lorad.engine.messages import Finished, Generate, Progress, Sampling, Token
from lorad.errors import AdapterRejected, EngineFailure, LoradError, NotFound, Unavailable
from lorad.server.run import Server
from lorad.store.state import StateFile
from scripted_engine import ProcessScript, model_info
from serving import TEXT, chunks_of

HERE = Path(__file__).parent
ENGINE = "scripted_engine:process_script"
COMPLETIONS = "/v1/completions"


@pytest.fixture(autouse=True)
def tests_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tests' tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    TEXT.tokenizer.core.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


class Collector:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.end: Finished | LoradError | None = None
        self.flushed = asyncio.Event()

    def token(self, token: Token) -> None:
        self.tokens.append(token.token)

    def finished(self, end: Finished) -> None:
        self.end = end

    def failed(self, request_id: int, error: LoradError) -> None:
        self.end = error

    def flush(self) -> None:
        if self.end is not None:
            self.flushed.set()

    async def ended(self) -> Finished | LoradError:
        await asyncio.wait_for(self.flushed.wait(), 5)
        assert self.end is not None
        return self.end


@contextlib.asynccontextmanager
async def running_engine(**options: Any) -> AsyncIterator[ProcessEngine]:
    engine = ProcessEngine(EngineConfig(model="x"), engine=ENGINE, **options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        assert engine.pid is not None and not _exists(engine.pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def generate(number: int, prompt: list[int], tokens: int = 5) -> Generate:
    return Generate(number, prompt, Sampling(max_tokens=tokens))


async def test_requests_adapters_and_refusals_cross_the_socket() -> None:
    progress: list[Progress] = []
    async with running_engine(on_progress=progress.append) as engine:
        assert progress == [Progress("weights", 1, 2)] and engine.fault is None and engine.model.layers == 2
        info = await engine.load_adapter("a", "somewhere")
        assert info.generation == "gen-a"
        with pytest.raises(AdapterRejected, match="rank 512") as refusal:
            await engine.load_adapter("b", "bad")
        assert refusal.value.code == "adapter_rank"
        with pytest.raises(EngineFailure):
            await engine.load_adapter("b", "weird")
        with pytest.raises(NotFound):
            await engine.release_adapter("gen-b")
        sinks = [Collector() for _ in range(4)]
        engine.submit(generate(1, [1]), sinks[0])
        engine.submit(generate(2, [ProcessScript.FAILS]), sinks[1])
        engine.submit(Generate(3, [1], Sampling(max_tokens=5), "gen-a"), sinks[2])
        engine.submit(Generate(4, [1], Sampling(max_tokens=5), "gen-b"), sinks[3])
        ends = [await sink.ended() for sink in sinks]
        assert sinks[0].tokens == [40, 41, 42, 43, 44] == sinks[2].tokens
        assert [end.reason for end in ends if isinstance(end, Finished)] == ["length", "error", "length", "error"]
        await engine.release_adapter("gen-a")
        assert (await engine.stats()).running == 0


async def test_loading_doesnt_hold_up_requests() -> None:
    async with running_engine() as engine:
        load = asyncio.create_task(engine.load_adapter("a", "slow"))
        await asyncio.sleep(0.05)
        sink = Collector()
        engine.submit(generate(1, [1]), sink)
        await sink.ended()
        assert not load.done()
        await load


@pytest.mark.parametrize("grammar", ["", "good"])
async def test_sequences_of_one_request_are_queued_together(grammar: str) -> None:
    """Else one could have made tokens, and its client be answered 200, when another is refused."""
    async with running_engine() as engine:
        sinks, sampling = [Collector(), Collector()], Sampling(max_tokens=5, grammar=grammar)
        engine.submit(Generate(1, [1], sampling, more=1), sinks[0])
        await asyncio.sleep(0.1)
        assert not sinks[0].flushed.is_set(), "it waits for what belongs to it"
        engine.submit(Generate(2, [ProcessScript.FAILS], sampling), sinks[1])
        ends = [await sink.ended() for sink in sinks]
        assert [end.reason for end in ends if isinstance(end, Finished)] == ["length", "error"]


async def test_grammars_are_compiled_beside_requests() -> None:
    async with running_engine() as engine:
        grammars = ["slow", "", "good", "slow", "bad", "weird", "good"]
        sinks = [Collector() for _ in grammars]
        for number, (grammar, sink) in enumerate(zip(grammars, sinks, strict=True)):
            engine.submit(Generate(number, [1], Sampling(max_tokens=5, grammar=grammar)), sink)
        engine.abort(3)
        await sinks[1].ended()
        await sinks[3].ended()
        assert not sinks[0].flushed.is_set() and not sinks[2].flushed.is_set()
        ends = [end for sink in sinks if isinstance(end := await sink.ended(), Finished)]
        assert [end.reason for end in ends] == ["length", "length", "length", "abort", "error", "error", "length"]
        assert [end.error.code for end in ends if end.error is not None] == ["grammar", "failed_grammar"]
        assert (await engine.stats()).running == 0


async def test_a_release_waits_for_requests_whose_grammars_are_compiled() -> None:
    async with running_engine() as engine:
        for name in ("a", "b"):
            await engine.load_adapter(name, "somewhere")
        sinks = [Collector() for _ in range(3)]
        for number, sink in enumerate(sinks):
            sampling = Sampling(max_tokens=5, grammar="slow" if number < 2 else "")
            engine.submit(Generate(number, [1], sampling, "gen-a"), sink)
        engine.abort(1)
        await engine.release_adapter("gen-b")
        assert not sinks[0].flushed.is_set(), "another's isn't held back"
        await engine.release_adapter("gen-a")
        ends = [end for sink in sinks if isinstance(end := await sink.ended(), Finished)]
        assert [end.reason for end in ends] == ["length", "abort", "length"]
        late = Collector()
        engine.submit(Generate(9, [1], Sampling(max_tokens=5), "gen-a"), late)
        end = await late.ended()
        assert isinstance(end, Finished) and end.error is not None and end.error.code == "unknown_generation"


async def test_aborts_cross_the_socket() -> None:
    async with running_engine() as engine:
        sink = Collector()
        engine.submit(generate(1, [1], tokens=100_000), sink)
        await asyncio.sleep(0.05)
        engine.abort(1)
        engine.abort(1)
        engine.abort(99)
        for _ in range(100):
            if (await engine.stats()).running == 0:
                break
            await asyncio.sleep(0.01)
        assert (await engine.stats()).running == 0
        end = await sink.ended()
        assert isinstance(end, Finished) and (end.reason, end.cached_tokens) == ("abort", 7)
        assert not engine._sinks


@pytest.mark.parametrize("how", ["fails", "killed"])
async def test_the_engines_death_is_told(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async with running_engine() as engine:
        sinks = [Collector(), Collector()]
        engine.submit(generate(1, [1], tokens=100_000), sinks[0])
        engine.submit(generate(2, [ProcessScript.DIES if how == "fails" else 1], tokens=100_000), sinks[1])
        await asyncio.sleep(0.1)
        if how == "killed":
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
        for sink in sinks:
            end = await sink.ended()
            assert isinstance(end, EngineFailure)
        assert isinstance(engine.fault, Unavailable)
        with pytest.raises(Unavailable):
            engine.submit(generate(3, [1]), Collector())
        with pytest.raises(Unavailable):
            await engine.stats()
        async with asyncio.timeout(5):
            while not caplog.records:
                await asyncio.sleep(0.01)
        assert engine.pid is not None and not _exists(engine.pid), "no zombie stays"
        (line,) = caplog.messages
        assert f"the engine process {engine.pid} " in line and "503 until it's started again" in line
        assert ("was killed by SIGKILL" if how == "killed" else "ended with status 1: the engine failed") in line


async def test_an_engine_that_stays_locked_up_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(client, "STALL_SECONDS", 0.2)
    async with running_engine() as engine:
        dead = asyncio.Event()
        engine.on_death = dead.set
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        await asyncio.wait_for(dead.wait(), 10)
        assert not _exists(engine.pid)
        assert isinstance(engine.fault, Unavailable) and engine.fault.code == "engine_restarting"
        await engine.restart()
        assert engine.fault is not None and engine.fault.code == "engine_restarting"
        engine.resume()
        sink = Collector()
        engine.submit(generate(1, [1]), sink)
        assert isinstance(await sink.ended(), Finished)


async def test_an_engine_that_is_locked_up_is_noticed_and_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(client, "STALL_SECONDS", 0.4)
    async with running_engine() as engine:
        assert engine.pid is not None
        sink = Collector()
        engine.submit(generate(1, [1], tokens=100_000), sink)
        os.kill(engine.pid, signal.SIGSTOP)
        end = await sink.ended()
        assert isinstance(end, EngineFailure) and end.code == "engine_stalled"
        assert engine.fault is not None and engine.fault.code == "engine_stalled"
        with pytest.raises(Unavailable):
            engine.submit(generate(2, [1]), Collector())
        os.kill(engine.pid, signal.SIGCONT)
        async with asyncio.timeout(5):
            while engine.fault is not None:
                await asyncio.sleep(0.01)
        assert (await engine.stats()).running == 0, "what was given up was aborted"
        sink = Collector()
        engine.submit(generate(3, [1]), sink)
        assert isinstance(await sink.ended(), Finished)


async def test_an_engine_that_cant_start_says_why() -> None:
    engine = ProcessEngine(EngineConfig(model="x"), engine="scripted_engine:no_such_factory")
    with pytest.raises(EngineFailure, match="AttributeError"):
        await engine.start()
    assert engine.pid is not None and not _exists(engine.pid)


async def test_a_pool_that_memory_doesnt_hold_is_a_plain_refusal(capfd: pytest.CaptureFixture[str]) -> None:
    engine = ProcessEngine(EngineConfig(model="x"), engine="scripted_engine:too_big")
    with pytest.raises(EngineFailure, match=r"9 TiB.*kv_cache_memory_bytes"):
        await engine.start()
    assert "Traceback" not in capfd.readouterr().err


async def test_the_engine_outlives_no_front_and_no_stop_signal() -> None:
    async with running_engine() as engine:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGTERM)
        os.kill(engine.pid, signal.SIGINT)
        await asyncio.sleep(0.1)
        assert (await engine.stats()).running == 0, "the front drains; a signal to the group must not cut it"
        assert engine._transport is not None
        engine._transport.abort()
        end = time.monotonic() + 3
        while engine._process is not None and engine._process.poll() is None and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert not _exists(engine.pid)


async def test_a_server_from_start_to_stop(model_folder: Path) -> None:
    loaded = []
    server = Server(
        EngineConfig(model=str(model_folder)),
        ServerConfig(port=0, lora_modules=["a=x", "b=y=z"], served_model_name="base"),
        engine=ENGINE,
        on_adapter=loaded.append,
    )
    address = await server.start()
    assert [info.name for info in loaded] == ["a", "b"]
    async with aiohttp.ClientSession(address) as session:
        async with session.get("/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["base", "a", "b"]
        async with session.post(COMPLETIONS, json={"model": "b", "prompt": "x", "max_tokens": 3}) as response:
            assert response.status == 200
    await server.stop()
    assert server.engine.pid is not None and not _exists(server.engine.pid)


async def test_a_server_watches_the_memory_that_is_left(model_folder: Path, tmp_path: Path) -> None:
    server = Server(
        EngineConfig(model=str(model_folder)),
        ServerConfig(
            port=0,
            served_model_name="base",
            memory_low_bytes=1 << 60,
            control_key="k",
            adapter_roots=[str(tmp_path)],
            state_file=str(tmp_path / "state.sqlite"),
        ),
        engine=ENGINE,
    )
    address = await server.start()
    try:
        async with aiohttp.ClientSession(address) as session:
            async with session.get("/health") as response:
                assert (await response.json())["status"] == "degraded"
            body = {"source": str(tmp_path / "a")}
            headers = {"Authorization": "Bearer k"}
            async with session.put("/v1/lora_adapters/a", json=body, headers=headers) as response:
                assert response.status == 429 and (await response.json())["error"]["code"] == "memory_low"
            async with session.post(COMPLETIONS, json={"model": "base", "prompt": "x", "max_tokens": 3}) as response:
                assert response.status == 200
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_modules": ["good=x", "evil=bad"]}, "adapter 'evil': rank 512"),
        ({"lora_modules": ["base=x"]}, "base model's name"),
        ({"lora_modules": ["nonsense"]}, "NAME=PATH"),
        ({"host": "256.0.0.1"}, "can't listen on 256.0.0.1"),
        ({"metrics_host": "256.0.0.2", "metrics_port": 9400}, "can't listen on 256.0.0.2"),
        ({"chat_template": "/no/such/file"}, "chat_template"),
    ],
)
async def test_what_prevents_a_start_is_said_and_leaves_nothing(
    model_folder: Path, options: dict[str, Any], message: str
) -> None:
    config = ServerConfig(**{"port": 0, "served_model_name": "base", **options})
    server = Server(EngineConfig(model=str(model_folder)), config, engine=ENGINE)
    with pytest.raises(LoradError, match=re.escape(message)):
        await server.start()
    assert server.engine.pid is None or not _exists(server.engine.pid)


async def test_a_state_file_that_is_used_is_refused_before_the_weights_are_read(
    model_folder: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state.sqlite"
    holder = StateFile(state, model_info().digest)
    config = ServerConfig(port=0, served_model_name="base", control_key="secret" * 8, state_file=str(state))
    server = Server(EngineConfig(model=str(model_folder)), config, engine="scripted_engine:slow_to_load")
    async with asyncio.timeout(30):  # it would load for longer
        with pytest.raises(Unavailable) as refusal:
            await server.start()
    assert refusal.value.code == "state_locked"
    assert server.engine.pid is not None and not _exists(server.engine.pid)
    holder.close()


async def test_a_start_that_fails_later_leaves_the_state_file(model_folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    options = {"served_model_name": "base", "control_key": "secret" * 8, "chat_template": "/no/such/file"}
    config = ServerConfig(port=0, state_file=str(state), **options)
    with pytest.raises(LoradError, match="chat_template"):
        await Server(EngineConfig(model=str(model_folder)), config, engine=ENGINE).start()
    StateFile(state, model_info().digest).close()


SERVE = """
import sys
from lorad.config import EngineConfig, ServerConfig
from lorad.server.run import serve
sys.exit(serve(EngineConfig(model=sys.argv[1]), ServerConfig(port=0, served_model_name="base",
    lora_modules=["a=x"], drain_seconds=float(sys.argv[2])), engine="scripted_engine:process_script"))
"""


@contextlib.contextmanager
def served(folder: Path, drain_seconds: float) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """`serve` as a process: it, its address, and its engine's process id."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder), str(drain_seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SCRIPT_PAUSE": "0.02"},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("adapter a: rank 8")
        address = process.stdout.readline().split()[-1]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield process, address, int(children[0])
    finally:
        process.kill()
        process.wait()


def long(tokens: int) -> dict[str, Any]:
    return {"model": "a", "prompt": "x", "max_tokens": tokens, "stream": True}


async def first_chunk(response: aiohttp.ClientResponse) -> bytes:
    return await response.content.readuntil(b"\n\n")


async def test_sigterm_drains(model_folder: Path) -> None:
    with served(model_folder, 20) as (process, address, child):
        async with aiohttp.ClientSession(address) as session:
            streams = [await session.post(COMPLETIONS, json=long(100)) for _ in range(8)]
            heads = [await first_chunk(stream) for stream in streams]
            os.kill(process.pid, signal.SIGTERM)
            await asyncio.sleep(0.1)
            async with session.post(COMPLETIONS, json=long(3)) as response:
                assert response.status == 503
            for head, stream in zip(heads, streams, strict=True):
                chunks = chunks_of(head + await stream.read())
                assert chunks[-1]["choices"][0]["finish_reason"] == "length" and len(chunks) > 95
        assert await asyncio.to_thread(process.wait, 10) == 0
        assert not _exists(child)


async def test_the_drain_has_a_deadline(model_folder: Path) -> None:
    with served(model_folder, 0.3) as (process, address, child):
        async with aiohttp.ClientSession(address) as session:
            stream = await session.post(COMPLETIONS, json=long(500))
            head = await first_chunk(stream)
            os.kill(process.pid, signal.SIGINT)
            assert chunks_of(head + await stream.read())[-1]["error"]["code"] == "draining"
        assert await asyncio.to_thread(process.wait, 10) == 0
        assert not _exists(child)


async def test_a_second_signal_ends_at_once(model_folder: Path) -> None:
    with served(model_folder, 60) as (process, address, child):
        async with aiohttp.ClientSession(address) as session:
            stream = await session.post(COMPLETIONS, json=long(500))
            await first_chunk(stream)
            os.kill(process.pid, signal.SIGTERM)
            await asyncio.sleep(0.1)
            os.kill(process.pid, signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 3) == 0
            stream.close()
        assert not _exists(child)


async def test_killing_the_engine_under_streams(model_folder: Path) -> None:
    with served(model_folder, 1) as (process, address, child):
        async with aiohttp.ClientSession(address) as session:
            stream = await session.post(COMPLETIONS, json=long(500))
            head = await first_chunk(stream)
            os.kill(child, signal.SIGKILL)
            assert chunks_of(head + await stream.read())[-1]["error"]["code"] == "engine_died"
            async with session.get("/health") as response:
                assert response.status == 503
            async with session.post(COMPLETIONS, json=long(3)) as response:
                assert response.status == 503
        os.kill(process.pid, signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 10) == 0
