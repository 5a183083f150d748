"""Leaving clients, a full queue, a dying engine, keys, health, metrics, and the way to an orderly stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lorad.engine.messages import AdapterStats
from lorad.errors import EngineFailure, InvalidRequest, NotFound, Overloaded, Unavailable
from lorad.page.files import FILES
from lorad.server import writing
from scripted_engine import adapter_info, empty_stats
from serving import Client, chunks_of, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def body(path: str, **more: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "go"}]} if path == CHAT else {"prompt": "go"}
    return {"model": "devil", "max_tokens": 60, **prompt, **more}


async def until(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    """Waits for something that happens elsewhere."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def manual(client: Client, tokens: int = 50) -> None:
    """The engine makes a token only when told to."""
    client.engine.auto = False
    client.engine.script = lambda request: [97] * tokens


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("steps", [0, 5])
async def test_a_client_that_leaves_frees_all_it_held(path: str, stream: bool, n: int, steps: int) -> None:
    async with serving() as client:
        manual(client)
        asked = asyncio.create_task(client.post(path, **body(path, stream=stream, n=n)))
        await until(lambda: client.engine.running == n)
        for _ in range(steps):
            client.engine.step()
            await asyncio.sleep(0.001)
        asked.cancel()
        await until(lambda: client.engine.running == 0)
        assert len(client.engine.aborted) == n
        await until(lambda: client.front.gate.inside == 0)
        assert not len(client.front.in_flight)
        client.engine.auto = True
        client.engine.script = lambda request: list(request.prompt)
        await client.alive()


async def test_a_client_that_leaves_while_its_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as client:
        waits = asyncio.Event()

        async def slow(work: object) -> list[int]:
            waits.set()
            await asyncio.sleep(30)
            return [1]

        monkeypatch.setattr(client.front, "_in_thread", slow)
        asked = asyncio.create_task(client.post(CHAT, **body(CHAT)))
        await waits.wait()
        assert client.front.gate.inside == 1
        asked.cancel()
        await until(lambda: client.front.gate.inside == 0)
        assert client.engine.submitted == []


async def test_a_full_queue_is_said_at_once() -> None:
    async with serving(in_flight_max=4) as client:
        manual(client, tokens=3)
        asked = [asyncio.create_task(client.post(COMPLETIONS, **body(COMPLETIONS))) for _ in range(40)]
        await until(lambda: sum(task.done() for task in asked) == 36)
        assert client.engine.running == 4
        assert {task.result()[0] for task in asked if task.done()} == {429}
        async with client.session.post(client.address + CHAT, json=body(CHAT)) as response:
            assert response.status == 429 and int(response.headers["Retry-After"]) >= 1
            error = (await response.json())["error"]
            assert error["type"] == "rate_limit_error" and "4" in error["message"]
        assert (await client.post(COMPLETIONS, **body(COMPLETIONS, n=5)))[0] == 400, "that many never fit"
        for _ in range(4):
            client.engine.step()
        answers = await asyncio.gather(*asked)
        assert sorted(status for status, _ in answers) == [200] * 4 + [429] * 36
        client.engine.auto = True
        client.engine.script = lambda request: list(request.prompt)
        await client.alive()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("9 pages wanted, 8 in the pool", code="never_fits"), 400),
        (NotFound("the generation is gone", code="unknown_generation"), 404),
        (Overloaded("the queue is full", code="queue_full"), 429),
        (EngineFailure("the row failed", code="failed_row"), 500),
        (Unavailable("stopping", code="draining"), 503),
    ],
)
async def test_a_refusal_by_the_engine_keeps_its_status(stream: bool, error: Any, status: int) -> None:
    async with serving() as client:
        client.engine.refuse = error
        got, answer = await client.post(COMPLETIONS, **body(COMPLETIONS, stream=stream, n=2))
        assert got == status and answer["error"]["message"] == error.message and answer["error"]["code"] == error.code
        client.engine.refuse = None
        await client.alive()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_failure_in_mid_stream_is_an_error_event_and_the_end_mark(path: str, n: int) -> None:
    async with serving() as client:
        manual(client)
        asked = asyncio.create_task(client.stream(path, **body(path, n=n)))
        await until(lambda: client.engine.running == n)
        client.engine.step()
        await asyncio.sleep(0.02)
        client.engine.refuse = EngineFailure("the row failed", code="failed_row")
        client.engine.step()
        chunks = chunks_of(await asked)
        assert chunks[-1] == {
            "error": {"message": "the row failed", "type": "server_error", "param": None, "code": "failed_row"}
        }
        choices = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
        texts = [choice["delta"].get("content") if path == CHAT else choice["text"] for choice in choices]
        assert texts.count("a") == n, "the text before the failure is kept"
        assert all(choice["finish_reason"] is None for choice in choices)
        assert client.engine.running == 0


async def test_a_dying_engine_is_told_to_everybody() -> None:
    async with serving() as client:
        manual(client)
        streams = [asyncio.create_task(client.stream(COMPLETIONS, **body(COMPLETIONS))) for _ in range(4)]
        whole = asyncio.create_task(client.post(COMPLETIONS, **body(COMPLETIONS)))
        await until(lambda: client.engine.running == 5)
        client.engine.step()
        await asyncio.sleep(0.02)
        client.engine.die(EngineFailure("the engine process has ended unexpectedly", code="engine_died"))
        for stream in streams:
            assert chunks_of(await stream)[-1]["error"]["code"] == "engine_died"
        status, answer = await whole
        assert status == 500 and answer["error"]["code"] == "engine_died"
        client.engine.fault = Unavailable("the engine is gone", code="engine_gone")
        status, answer = await client.get("/health")
        assert status == 503 and answer == {"status": "engine_gone"}
        assert (await client.post(COMPLETIONS, **body(COMPLETIONS)))[0] == 503
        assert (await client.post(CHAT, **body(CHAT, stream=True)))[0] == 503
        async with client.session.get(client.address + "/metrics") as response:
            assert "lorad:engine_up 0.0" in await response.text()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_that_a_stop_string_has_ended_is_whole_whatever_comes_after(stream: bool) -> None:
    async with serving() as client:
        manual(client)
        fields = body(COMPLETIONS, stop="aa", stream=stream)
        asked = asyncio.create_task(
            client.stream(COMPLETIONS, **fields) if stream else client.post(COMPLETIONS, **fields)
        )
        await until(lambda: client.engine.running == 1)
        client.engine.step()
        client.engine.step()
        assert client.engine.aborted and client.engine.running == 0
        client.engine.die(EngineFailure("the engine process has ended unexpectedly", code="engine_died"))
        got = await asked
        last = chunks_of(got)[-1] if isinstance(got, bytes) else got[1]
        assert last["choices"][0]["finish_reason"] == "stop"


async def test_draining() -> None:
    async with serving() as client:
        manual(client, tokens=3)
        running = asyncio.create_task(client.stream(COMPLETIONS, **body(COMPLETIONS)))
        await until(lambda: client.engine.running == 1)
        client.front.drain()
        assert (await client.post(COMPLETIONS, **body(COMPLETIONS)))[0] == 503
        assert await client.get("/health") == (503, {"status": "draining"})
        for _ in range(4):
            client.engine.step()
        assert chunks_of(await running)[-1]["choices"][0]["finish_reason"] == "stop"
        await asyncio.wait_for(client.front.gate.emptied(), 1)


@pytest.mark.parametrize("code", ["draining", "engine_restarting", "engine_starting", "engine_stalled", "engine_gone"])
async def test_what_passes_says_when_to_come_back(code: str) -> None:
    async with serving() as client:
        if code == "draining":
            client.front.drain()
        else:
            client.engine.fault = Unavailable("not now", code=code)
        asked = {"json": body(COMPLETIONS)}
        for method, path, options in (("GET", "/health", {}), ("POST", COMPLETIONS, asked)):
            async with client.session.request(method, client.address + path, **options) as answer:
                assert answer.status == 503 and code in await answer.text()
                # An engine that has gone for good is no reason to come back.
                assert ("Retry-After" in answer.headers) is (code != "engine_gone")
                assert 1 <= int(answer.headers.get("Retry-After", 1)) <= 5


async def test_the_drains_deadline_is_an_error_event() -> None:
    async with serving() as client:
        manual(client)
        stream = asyncio.create_task(client.stream(COMPLETIONS, **body(COMPLETIONS)))
        whole = asyncio.create_task(client.post(COMPLETIONS, **body(COMPLETIONS)))
        await until(lambda: client.engine.running == 2)
        client.engine.step()
        await asyncio.sleep(0.02)
        client.front.drain()
        client.front.cut()
        assert chunks_of(await stream)[-1]["error"]["code"] == "draining"
        assert (await whole)[0] == 503
        assert client.engine.running == 0


async def test_a_slow_reader_holds_nothing_in_the_engine_and_is_cut_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "WRITE_SECONDS", 0.3)
    async with serving() as client:
        # More than the sockets on the way can hold.
        client.engine.script = lambda request: [97] * 100
        many = {**body(COMPLETIONS, stream=True, n=128, max_tokens=100), "model": "devil", "logprobs": 20}
        raw = msgspec.json.encode(many)
        host, port = client.address.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(raw), raw)
        )
        await until(lambda: len(client.engine.submitted) == 128)
        await until(lambda: client.engine.running == 0, seconds=20)
        client.engine.script = lambda request: list(request.prompt)
        await client.alive()
        await until(lambda: not len(client.front.in_flight), seconds=10)
        writer.close()


async def test_only_health_and_the_pages_files_are_open() -> None:
    async with serving(api_key="sk-right") as client:
        routes = [(route.method, route.resource.canonical) for route in _routes(client)]
        assert len(routes) >= 9
        for method, path in [
            *routes,
            ("GET", "/nothing"),
            ("POST", "/health"),
            ("GET", "/health/"),
            ("GET", "//health"),
            ("POST", "/ui"),
            ("GET", "/ui/"),
            ("GET", "/ui/nothing"),
            ("GET", "//ui"),
            ("GET", "/ui/../v1/models"),
        ]:
            for given in (
                None,
                "Bearer sk-wrong",
                "Bearer ",
                "sk-right",
                "Basic sk-right",
                "Bearer sk-right2",
                "Bearer \xe4",
            ):
                headers = {"Authorization": given} if given else {}
                url = client.address + path.replace("{name}", "devil")
                async with client.session.request(method, url, headers=headers) as response:
                    if path in ("/health", "/health/live", *FILES) and method in ("GET", "HEAD"):
                        assert response.status == 200 and "devil" not in await response.text()
                    else:
                        assert response.status == 401, (method, path, given)
                        assert response.headers["WWW-Authenticate"] == "Bearer"
        right = {"Authorization": "Bearer sk-right"}
        assert (await client.get("/v1/models", headers=right))[0] == 200
        assert (await client.get("/nothing", headers=right))[0] == 404
        assert client.engine.submitted == []


def _routes(client: Client) -> Any:
    from lorad.server.app import make_app

    return make_app(client.front).router.routes()


async def test_metrics_tell_adapters_apart_and_forget_them() -> None:
    awkward = ("a,b", 'q"uote', "back\\slash", "größe", "😀")
    async with serving(adapters=("devil", "bible", *awkward)) as client:
        client.engine.stats_now = empty_stats(
            running=1,
            waiting=2,
            adapters={
                "gen-devil": AdapterStats(state="hot", running=1, waiting=0, pages=3),
                "gen-bible": AdapterStats(state="loading", running=0, waiting=2, pages=0),
            },
        )

        async def scrape() -> dict[tuple[str, ...], float]:
            async with client.session.get(client.address + "/metrics") as response:
                assert response.headers["Content-Type"].startswith("text/plain")
                text = await response.text()
            return {
                (sample.name, *(value for label, value in sample.labels.items() if label != "engine")): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }

        seen = await scrape()
        assert seen["vllm:num_requests_running", "base"] == 1 and seen["vllm:num_requests_waiting", "base"] == 2
        assert seen["lorad:adapter_requests_running", "devil"] == 1
        assert seen["lorad:adapter_requests_waiting", "devil"] == 0
        assert seen["lorad:adapter_requests_running", "bible"] == 0
        assert seen["lorad:adapter_requests_waiting", "bible"] == 2
        assert seen["lorad:adapter_state", "devil", "hot"] == 1 and seen["lorad:adapter_state", "devil", "cold"] == 0
        assert seen["lorad:adapter_state", "bible", "loading"] == 1
        assert all(seen["lorad:adapter_state", name, "cold"] == 1 for name in awkward), "idle adapters are there too"
        for name in ("devil", *awkward):
            for _ in range(2):
                assert (await client.post(COMPLETIONS, model=name, prompt="hi"))[0] == 200
        seen = await scrape()
        for name in ("devil", *awkward):
            assert seen["lorad:adapter_generation_tokens_total", name] == 4
            assert seen["lorad:adapter_prompt_tokens_total", name] == 4
        assert seen["vllm:generation_tokens_total", "base"] == 4 * 6
        assert seen["vllm:request_success_total", "stop", "base"] == 12
        assert seen["vllm:time_to_first_token_seconds_count", "base"] == 12
        assert seen["vllm:time_per_output_token_seconds_count", "base"] == 12
        assert seen["lorad:http_requests_total", COMPLETIONS, "200"] == 12
        client.front.registry.withdraw("devil")
        seen = await scrape()
        assert not [key for key in seen if "devil" in key]
        assert [key for key in seen if "a,b" in key]


async def test_a_name_can_be_pointed_elsewhere_while_requests_run() -> None:
    async with serving() as client:
        manual(client, tokens=3)
        running = asyncio.create_task(client.post(COMPLETIONS, **body(COMPLETIONS)))
        await until(lambda: client.engine.running == 1)
        before = client.front.registry.publish(adapter_info("devil", "gen-new"))
        assert before is not None and before.generation == "gen-devil"
        later = asyncio.create_task(client.post(COMPLETIONS, **body(COMPLETIONS)))
        await until(lambda: client.engine.running == 2)
        assert [request.generation for request in client.engine.submitted] == ["gen-devil", "gen-new"]
        for _ in range(4):
            client.engine.step()
        assert (await running)[1]["system_fingerprint"] == "gen-devil"
        assert (await later)[1]["system_fingerprint"] == "gen-new"
        assert [m["generation"] for m in (await client.get("/v1/models"))[1]["data"] if m["id"] == "devil"] == [
            "gen-new"
        ]


@pytest.mark.parametrize("name", ["base", "", "x" * 257, "new\nline", "nul\x00", "\x7f"])
async def test_names_that_no_adapter_may_have(name: str) -> None:
    async with serving() as client:
        with pytest.raises(InvalidRequest):
            client.front.registry.publish(adapter_info(name, "gen"))
        await client.alive()


async def test_faults_of_ours_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as client:

        async def broken(work: object) -> list[int]:
            raise RuntimeError("secret")

        monkeypatch.setattr(client.front, "_in_thread", broken)
        status, answer = await client.post(CHAT, **body(CHAT))
        assert status == 500 and answer["error"]["message"] == "internal error"
        assert client.front.gate.inside == 0
