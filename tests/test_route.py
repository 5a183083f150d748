"""`lorad route`: what goes through it unchanged, what's asked again elsewhere, and what isn't."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlling import controlling
from lorad import cli
from lorad.errors import InvalidRequest
from lorad.fleet.config import RouteConfig
from lorad.fleet.inventory import LoadTimes
from lorad.fleet.replicas import parse_dns, parse_urls
from lorad.fleet.run import check_route
from routing import KEY, ROUTE_HEADER, adapter, eventually, replicas, routed

ASK = {"model": "base", "prompt": "hello", "max_tokens": 5}


def told(answer: Any) -> dict[str, Any]:
    return dict(msgspec.json.decode(answer.headers[ROUTE_HEADER]))


# through


async def test_real_servers_answer_through_it_as_they_do_alone(tmp_path: Path) -> None:
    async with (
        controlling(tmp_path / "one", api_key="tenant") as one,
        controlling(tmp_path / "two", api_key="tenant") as two,
    ):
        for control in (one, two):
            assert (await control.load("devil", control.write("devil", "x")))[0] == 200
        urls = [control.client.address for control in (one, two)]
        async with routed(*urls) as client:
            headers = {"Authorization": "Bearer tenant", "X-Request-ID": "mine"}
            answer = await client.post(headers=headers, **{**ASK, "model": "devil"})
            assert answer.status == 200 and answer.headers["X-Request-ID"] == "mine"
            assert answer.json()["choices"][0]["text"] == "hello"
            assert ROUTE_HEADER not in answer.headers, "nobody asked for it"
            streamed = await client.post(headers=headers, stream=True, **ASK)
            assert streamed.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            events = streamed.body.decode().split("\n\n")
            assert events[-2:] == ["data: [DONE]", ""] and len(events) > 3
            explained = await client.post(headers=headers, explain=True, **{**ASK, "model": "base:devil"})
            assert set(told(explained)["chosen"]) >= {"queue", "prefix", "load", "risk", "displaced", "total"}
            wrong = await client.post(**ASK)
            assert wrong.status == 401 and wrong.json()["error"]["code"] == "missing_api_key"
            assert (await client.get("/v1/models"))[0] == 401
            status, models = await client.get("/v1/models", "tenant")
            assert status == 200 and [model["id"] for model in models["data"]] == ["base", "devil"]
            assert (await client.get("/v1/models/devil", "tenant"))[1]["generation"].startswith("gen-")
            assert (await client.get("/v1/models/nobody", "tenant"))[0] == 404
            for body in (b"{", b"[]", b'{"model": 3}', b'{"model": "base", "prompt": "hi", "typo": 1}'):
                async with client.session.post(client.address + "/v1/completions", data=body, headers=headers) as bad:
                    assert bad.status == 400, "the server says what's wrong"
            assert (await client.post("/tokenize", headers=headers, model="base", prompt="hello")).status == 200


async def test_headers_of_the_connection_stay_and_clients_cant_send_ours() -> None:
    async with replicas(1) as (one,), routed(one.url) as client:
        headers = {
            **{ROUTE_HEADER: "forged:99", "X-Mine": "1", "Connection": "X-Hop, keep-alive", "X-Hop": "1"},
            **{"Authorization": "Bearer whatever", "Accept-Encoding": "gzip", "User-Agent": "somebody"},
        }
        assert (await client.post(headers=headers, **ASK)).status == 200
        got = one.asked[0].headers
        assert got["X-Mine"] == "1" and got["Authorization"] == "Bearer whatever" and "X-Hop" not in got
        assert (got["Accept-Encoding"], got["User-Agent"]) == ("gzip", "somebody")
        assert got.getall(ROUTE_HEADER) != ["forged:99"] and len(got.getall(ROUTE_HEADER)) == 1
        assert msgspec.json.decode(one.bodies[0]) == ASK


async def test_a_stream_comes_as_it_is_made() -> None:
    async with replicas(1) as (one,), routed(one.url) as client:
        one.handler = one.streams(3, then="nothing")
        async with client.session.post(client.address + "/v1/completions", json=ASK) as answer:
            assert await answer.content.readuntil(b"\n\n") == b"data: 0\n\n"
            assert await answer.content.readuntil(b"\n\n") == b"data: 1\n\n"
            assert await answer.content.readuntil(b"\n\n") == b"data: 2\n\n"
        await eventually(lambda: one.aborted == 1)


async def test_a_client_that_leaves_ends_its_request_there() -> None:
    async with replicas(1) as (one,), routed(one.url) as client:
        one.handler = one.hangs
        waiting = asyncio.create_task(client.post(**ASK))
        await eventually(lambda: one.asked)
        waiting.cancel()
        await eventually(lambda: one.aborted == 1)
        assert client.front.gate.inside == 0
        assert await client.metric("in_flight", replica="r0") == 0


# elsewhere


@pytest.mark.parametrize("failure", ["refuses", "resets", "cut", "headers"])
async def test_another_server_is_asked_while_nothing_was_sent(failure: str) -> None:
    async with replicas(2) as (one, two), routed(one.url, two.url, policy="round-robin") as client:
        for replica in (one, two):
            made = {"cut": replica.cut(1000), "headers": replica.streams(0, then="reset")}
            replica.handler = made.get(failure) or getattr(replica, failure)
        two.handler = two.says
        for _ in range(2):  # whoever's turn it is
            answer = await client.post(**ASK)
            assert answer.status == 200 and answer.json() == {"from": two.url}
            await client.until(2)
        cause = "unavailable" if failure == "refuses" else "reset"
        assert await client.metric("retries_total", cause=cause) == len(one.asked) >= 1


async def test_a_server_that_is_gone_is_marked_and_comes_back() -> None:
    async with replicas(2) as (one, two), routed(one.url, two.url, policy="round-robin") as client:
        port = int(one.url.rsplit(":", 1)[1])
        await one.stop()
        for _ in range(6):
            assert (await client.post(**ASK)).json() == {"from": two.url}
        await client.until(1)
        assert (await client.get("/health"))[1]["replicas"] == {"live": 1, "draining": 0, "silent": 1}
        await one.start(port)
        await client.until(2)
        answers = [(await client.post(**ASK)).json() for _ in range(2)]
        assert {answer["from"] for answer in answers} == {one.url, two.url}
        assert await client.metric("lost_total") == 0


async def test_attempts_are_bounded_and_the_refusal_is_the_servers() -> None:
    async with replicas(3) as made, routed(*(one.url for one in made), attempts=2) as client:
        for one in made:
            one.handler = one.refuses
        answer = await client.post(**ASK)
        assert answer.status == 503 and answer.headers["Retry-After"] == "1"
        assert answer.json()["error"]["code"] == "draining"
        assert sum(len(one.asked) for one in made) == 2
        await client.until(3)
        for one in made:
            one.handler = one.resets
        answer = await client.post(**ASK)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "replicas_failed")


async def test_what_has_begun_isnt_begun_again() -> None:
    async with replicas(2) as (one, two), routed(one.url, two.url) as client:
        for replica in (one, two):
            replica.handler = replica.streams(2, then="reset")
        answer = await client.post(stream=True, **ASK)
        events = answer.body.decode().split("\n\n")
        assert events[:2] == ["data: 0", "data: 1"] and events[3:] == ["data: [DONE]", ""]
        assert msgspec.json.decode(events[2].removeprefix("data: "))["error"]["code"] == "replica_lost"
        assert len(one.asked) + len(two.asked) == 1
        assert await client.metric("lost_total") == 1


async def test_a_server_that_falls_silent_loses_what_waits_there() -> None:
    async with replicas(2) as (one, two), routed(one.url, two.url, silent_seconds=1.0) as client:
        one.handler, two.handler = one.hangs, two.hangs
        waiting = asyncio.create_task(client.post(**ASK))
        await eventually(lambda: one.asked or two.asked)
        lost, other = (one, two) if one.asked else (two, one)
        lost.silent, other.handler = True, other.says
        answer = await waiting
        assert answer.json() == {"from": other.url}
        lost.silent = False
        await client.until(2)


async def test_a_server_that_is_forgotten_may_still_answer() -> None:
    async with replicas(1) as (one,), routed(one.url, silent_seconds=600.0) as client:
        answered = asyncio.Event()

        async def late(request: Any) -> Any:
            await answered.wait()
            return await one.says(request)

        one.handler = late
        waiting = asyncio.create_task(client.post(explain=True, **ASK))
        await eventually(lambda: one.asked)
        (replica,) = client.front.replicas
        replica.forget()
        answered.set()
        answer = await waiting
        assert answer.status == 200 and told(answer)["chosen"]["replica"] == "r0"


async def test_nobody_is_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with routed(url, live=0) as client:
            answer = await client.post(**ASK)
            assert (answer.status, answer.json()["error"]["code"]) == (503, "no_replica")
            assert (await client.get("/health"))[0] == 503 and (await client.get("/health/live"))[0] == 200
            assert (await client.get("/v1/models"))[1]["error"]["code"] == "no_replica"


# decisions


async def test_requests_go_where_their_adapter_is_and_say_why() -> None:
    async with replicas(2) as (one, two):
        loads = LoadTimes(warm=1e-6)
        one.publish(adapters=[adapter("a"), adapter("b", "hot")], loads=loads, token_seconds=0.001)
        two.publish(adapters=[adapter("a", "hot"), adapter("b")], loads=loads, token_seconds=0.001)
        async with routed(one.url, two.url) as client:
            for name, there, load in (("a", two, 1048.576), ("b", one, 1048.576)):
                answer = await client.post(explain=True, **{**ASK, "model": name})
                assert answer.json() == {"from": there.url}
                told_of = told(answer)
                assert told_of["chosen"]["load"] == 0 and told_of["runner_up"]["load"] == pytest.approx(load, abs=2)
                assert told_of["policy"] == "cost" and len(told_of["candidates"]) == 2
                assert one.url not in answer.headers[ROUTE_HEADER], "addresses are nobody's business"
            assert await client.metric("decisions_total", policy="cost", by="load") == 2
            one.publish(aliases={"alias": "a"})
            two.publish(aliases={"alias": "a"})
            await eventually(lambda: client.front.router.meant("alias") == "a")
            assert (await client.post(**{**ASK, "model": "alias"})).json() == {"from": two.url}
            assert (await client.post(**{**ASK, "model": "base:b"})).json() == {"from": one.url}


async def test_servers_that_drain_get_nothing() -> None:
    async with replicas(2) as (one, two), routed(one.url, two.url, policy="round-robin") as client:
        one.publish(draining=True)
        await client.until(1)
        for _ in range(3):
            assert (await client.post(**ASK)).json() == {"from": two.url}
        assert (await client.get("/health"))[1]["replicas"] == {"live": 1, "draining": 1, "silent": 0}


async def test_adapters_are_made_warm_where_they_live() -> None:
    async with replicas(2) as made:
        for one in made:
            one.publish(adapters=[adapter("a", source="hf://org/a"), adapter("b")], loads=LoadTimes(warm=1e-9))
        options = {"rebalance_seconds": 3600.0, "policy": "affinity"}
        async with routed(*(one.url for one in made), **options) as client:
            for _ in range(3):
                await client.post(**{**ASK, "model": "a"})
            (home,) = [one for one in made if one.asked]
            client.front.placing.round()
            await client.front.placing.settled()
            calls = [(one, call) for one in made for call in one.called]
            assert [(one is home, method, path) for one, (method, path, _) in calls] == [
                (True, "POST", "/v1/lora_prewarm")
            ]
            assert calls[0][1][2]["names"] == ["a"]
            client.front.placing.round()
            await client.front.placing.settled()
            assert await client.metric("prewarms_total", end="done") == 1, "it has evicted it: it had better use"
            # its home is gone: it lives on the other one
            await home.stop()
            await client.until(1)
            (other,) = [one for one in made if one is not home]
            client.front.replicas._forget_seconds = 0.0
            client.front.placing.round()
            await client.front.placing.settled()
            assert [(path, body["names"]) for _, path, body in other.called] == [("/v1/lora_prewarm", ["a"])]


async def test_what_a_home_doesnt_know_is_fetched_from_where_others_have_it() -> None:
    async with replicas(2) as made:
        made[0].publish(adapters=[adapter("a", source="hf://org/a"), adapter("local")])
        made[1].publish(adapters=[])
        options = {"rebalance_seconds": 3600.0, "policy": "round-robin"}
        async with routed(*(one.url for one in made), **options) as client:
            client.front.placing._places = True
            for name in ("a", "local") * 30:
                await client.post(**{**ASK, "model": name})
            for _ in range(3):
                client.front.placing.round()
                await client.front.placing.settled()
            fetched = [call for call in made[1].called if call[0] == "PUT"]
            assert fetched and all(
                path == "/v1/lora_adapters/a" and body["source"] == "hf://org/a" for _, path, body in fetched
            )
            assert await client.metric("moves_total", reason="popular") >= 1
            assert await client.metric("prewarms_total", end="no_source") >= 1


# bounds, options


async def test_bounds_and_the_end() -> None:
    async with replicas(1) as (one,), routed(one.url, in_flight_max=1, body_bytes_max=2048) as client:
        one.handler = one.hangs
        waiting = asyncio.create_task(client.post(**ASK))
        await eventually(lambda: one.asked)
        full = await client.post(**ASK)
        assert (full.status, full.json()["error"]["code"]) == (429, "queue_full")
        large = await client.post(**{**ASK, "prompt": "x" * 4000})
        assert large.status == 413
        assert (await client.post("/v1/lora_adapters", name="x")).status == 404, "control endpoints are the servers'"
        assert (await client.get("/metrics"))[0] == 401 and (await client.get("/metrics", KEY))[0] == 200
        client.front.gate.drain()
        late = await client.post(**ASK)
        assert (late.status, late.json()["error"]["code"]) == (503, "draining")
        assert (await client.get("/health"))[1]["status"] == "draining"
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_names_in_dns_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replicas(1) as (one,):
        port = int(one.url.rsplit(":", 1)[1])
        found: list[str] = ["127.0.0.1"]
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo

        async def look_up(host: str, *arguments: Any, **options: Any) -> Any:
            if host != "replicas.internal":
                return await real(host, *arguments, **options)
            if not found:
                raise socket.gaierror("no such name")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found if address]

        monkeypatch.setattr(loop, "getaddrinfo", look_up)
        options = {"replicas_dns": f"replicas.internal:{port}", "dns_seconds": 0.1}
        async with routed(live=1, **options) as client:
            assert (await client.post(**ASK)).json() == {"from": one.url}
            found.clear()
            await asyncio.sleep(0.3)
            assert len(client.front.replicas.live) == 1, "what can't be looked up stays"
            found.append("")
            await client.until(0)
            found[:] = ["127.0.0.1"]
            await client.until(1)


def test_options_that_dont_fit_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for url in (
        "host:80",
        "ftp://x",
        "http://",
        "http://x/path",
        "http://u:p@x",
        "http://x?q",
        "http://x:0",
        "http://[x",
    ):
        with pytest.raises(InvalidRequest, match="replica: http://HOST:PORT"):
            parse_urls([url])
    assert parse_urls(["http://a:1/", "https://[::1]:2"]) == ["http://a:1", "https://[::1]:2"]
    with pytest.raises(InvalidRequest, match="twice"):
        parse_urls(["http://a:1", "http://a:1/"])
    for name in ("x", "x:", "x:0", "x:70000", ":1", "a b:1"):
        with pytest.raises(InvalidRequest, match="replicas_dns: name:port"):
            parse_dns(name)
    with pytest.raises(InvalidRequest, match="control_key"):
        check_route(RouteConfig(replica=["http://a:1"]))
    assert cli.main(["route"]) == 1 and "[option_missing]" in capsys.readouterr().err
    parsed = cli._parser().parse_args(["route", "--replica", "http://a:1", "--replica", "http://b:1"])
    assert parsed.replica == ["http://a:1", "http://b:1"]
