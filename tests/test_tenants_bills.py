"""What a request costs its tenant: the answers' own counts, nothing if refused, what was made by then for who left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from lorad.config import EngineConfig, ServerConfig
from lorad.errors import EngineFailure, Overloaded, Unavailable
from lorad.models.open import open_model
from lorad.server.run import Server
from lorad.tenants.directory import LOOK_SECONDS
from lorad.tenants.file import TenantFile, Used, UsedRow
from lorad.tenants.ledger import Ledger
from lorad.tenants.sums import first_hour
from lorad.tenants.tenant import Limits, Tenant
from make_adapter import make_adapter
from serving import Client, serving
from tiny import make_tiny

REQUESTS = int(os.environ.get("LORAD_BILLS", "80"))
COMPLETIONS = "/v1/completions"


@contextlib.asynccontextmanager
async def one_tenant(folder: Path, **limits: int) -> Any:
    """A server of the tenant acme, and its key as headers."""
    file = TenantFile(folder / "state.sqlite")
    key, _ = file.add_key(file.put(Tenant("acme", 0, limits=Limits(**limits))).name)
    async with serving(tenants=folder / "state.sqlite") as client:
        yield client, file, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    file.close()


async def ask(client: Client, headers: dict[str, str], **fields: Any) -> tuple[int, bytes]:
    body = msgspec.json.encode({"model": "devil", "prompt": "hihihi", "max_tokens": 6, **fields})
    async with client.session.post(client.address + COMPLETIONS, data=body, headers=headers) as response:
        return response.status, await response.read()


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.005)


def connection(file: TenantFile) -> sqlite3.Connection:
    assert file._opened is not None
    return file._opened.database


def booked(client: Client) -> dict[tuple[str, str], Used]:
    assert client.front.ledger is not None
    return {key: used._replace(seconds=0.0) for key, used in client.front.ledger.totals.items()}


async def test_a_refusal_costs_nothing_and_gives_the_rate_back(tmp_path: Path) -> None:
    async with one_tenant(tmp_path, tokens_per_minute=100) as (client, _, headers):
        client.engine.refuse = Overloaded("the tenant's queue is full", code="tenant_queue_full")
        for stream in (False, True):
            status, body = await ask(client, headers, prompt="ab" * 60, stream=stream)
            assert status == 429 and b"tenant_queue_full" in body
        assert booked(client) == {}
        client.engine.refuse = None
        assert (await ask(client, headers))[0] == 200, "the rate has its tokens again"
        assert booked(client) == {("acme", "devil"): Used(1, 6, 0, 6)}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_takes_the_answer_back_but_not_what_a_stream_has_brought(tmp_path: Path, stream: bool) -> None:
    async with one_tenant(tmp_path) as (client, _, headers):
        client.engine.auto = False
        asked = asyncio.create_task(ask(client, headers, stream=stream))
        await until(lambda: client.engine.running)
        for _ in range(2):
            client.engine.step()
        await asyncio.sleep(0.05)
        client.engine.die(EngineFailure("it's gone", code="engine_died"))
        status, body = await asked
        assert (status == 200) is stream and b"engine_died" in body
        assert booked(client) == ({("acme", "devil"): Used(1, 6, 0, 2)} if stream else {})


async def test_who_leaves_pays_what_the_engine_tells_afterwards(tmp_path: Path) -> None:
    async with one_tenant(tmp_path) as (client, _, headers):
        client.engine.auto, client.engine.cached_tokens = False, 4
        asked = asyncio.create_task(ask(client, headers, stream=True, n=2))
        await until(lambda: client.engine.running == 2)
        for _ in range(3):
            client.engine.step()
        await asyncio.sleep(0.05)
        asked.cancel()
        await until(lambda: client.engine.aborted)
        assert booked(client) == {}, "the engine hasn't told what was cached"
        client.engine.step()
        assert booked(client) == {("acme", "devil"): Used(1, 6, 4, 6)}
        async with client.session.get(client.address + "/health") as response:
            assert response.status == 200


async def test_a_tenant_that_is_removed_meanwhile_is_answered_and_pays(tmp_path: Path) -> None:
    async with one_tenant(tmp_path) as (client, file, headers):
        client.engine.auto = False
        asked = asyncio.create_task(ask(client, headers))
        await until(lambda: client.engine.running)
        file.remove("acme")
        again = file.put(Tenant("acme", 0))
        await asyncio.sleep(2.5 * LOOK_SECONDS)
        assert (await ask(client, headers))[0] == 401
        while not asked.done():
            client.engine.step()
            await asyncio.sleep(0.001)
        assert (await asked)[0] == 200
        assert booked(client) == {("acme", "devil"): Used(1, 6, 0, 6)}
        assert again.number != client.engine.submitted[0].tenant, "a namesake shares no cache with it"


async def test_an_hour_has_what_ended_in_it_also_when_it_is_written_later(tmp_path: Path) -> None:
    hour, clock = 500_000, [0.0]
    file = TenantFile(tmp_path / "state.sqlite")
    ledger = Ledger(file, "base", now=lambda: clock[0])
    database = connection(file)
    for seconds, tokens in ((-0.001, 1), (0.0, 2), (3599.999, 4), (3600.0, 8)):
        clock[0] = hour * 3600 + seconds
        ledger.add("acme", "m", Used(1, tokens))
        if not seconds:
            database.execute("PRAGMA query_only = ON")
            await ledger.write()
            assert file.usage() == [], "it couldn't be written"
            database.execute("PRAGMA query_only = OFF")
    await ledger.write()
    assert {row.hour - hour: row.used.prompt_tokens for row in file.usage()} == {-1: 1, 0: 6, 1: 8}
    assert [row.hour for row in file.usage(first_hour(clock[0], 1))] == [hour + 1]
    assert [row.hour for row in file.usage(first_hour(clock[0] - 0.001, 1))] == [hour, hour + 1]
    file.close()


async def test_who_asks_for_the_usage_and_leaves_takes_nothing_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TenantFile(tmp_path / "state.sqlite")
    ledger = Ledger(file, "base", now=lambda: 0.0)
    begun, goes_on = threading.Event(), threading.Event()

    def full(rows: Iterable[UsedRow]) -> None:
        begun.set()
        goes_on.wait()
        raise Unavailable("the disk is full", code="state_file")

    ledger.add("acme", "m", Used(1, 7))
    with monkeypatch.context() as patched:
        patched.setattr(file, "add_usage", full)
        asked = asyncio.create_task(ledger.rows(0))
        await asyncio.to_thread(begun.wait)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        written = asyncio.create_task(ledger.write())  # waits for the file, which a thread is at
        goes_on.set()
        await written
    assert [row.used for row in await ledger.rows(0)] == [Used(1, 7)]
    file.close()


def test_a_ledger_that_met_a_full_disk_goes_on_when_there_is_room(tmp_path: Path) -> None:
    file = TenantFile(tmp_path / "state.sqlite")
    rows = [UsedRow("b", "acme", f"model {number}", 5, Used(1, 2)) for number in range(3000)]
    database = connection(file)
    database.execute("PRAGMA max_page_count = 12")
    for _ in range(3):
        with pytest.raises(Unavailable, match="disk is full") as refusal:
            file.add_usage(rows)
        assert refusal.value.code == "state_file"
    assert file.usage() == [] and file.tenants() == []
    database.execute("PRAGMA max_page_count = 10000")
    file.add_usage(rows)
    assert file.usage() == sorted(rows, key=lambda row: row.model)
    file.close()


class Asker:
    """Asks a real server at random, and adds up what its answers say of themselves."""

    def __init__(self, session: aiohttp.ClientSession, keys: dict[str, str], seed: int) -> None:
        self.session, self.keys, self.dice = session, keys, random.Random(seed)
        self.sums: Counter[tuple[str, str, str]] = Counter()
        """By tenant, model and what is counted."""
        self.statuses: Counter[int] = Counter()
        self.left: Counter[str] = Counter()
        """Of those that hung up: requests, and the most that they can have cost."""

    def body(self, model: str) -> dict[str, Any]:
        dice = self.dice
        prompts = [[5 + dice.randrange(3) for _ in range(dice.randrange(1, 90))] for _ in range(dice.randrange(1, 3))]
        body: dict[str, Any] = {"model": model, "prompt": prompts, "max_tokens": dice.randrange(1, 12)}
        body |= {"n": dice.choice((1, 1, 3)), "seed": dice.randrange(1 << 40), "ignore_eos": dice.random() < 0.5}
        if dice.random() < 0.3:
            body["stop"] = [chr(97 + dice.randrange(26))]
        match dice.randrange(8):
            case 0 | 1 | 2:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            case 3 | 4:
                body |= {"echo": True, "logprobs": dice.choice((None, 1))}
            case 5:
                body |= dice.choice(({"max_tokens": 1 << 20}, {"temperature": 9}, {"model": "nobody"}))
        return body

    async def ask(self) -> None:
        whose = self.dice.choice(("one", "two", "narrow", "leaver"))
        model = self.dice.choice(("base", "a"))
        body, headers = self.body(model), {"Authorization": f"Bearer {self.keys[whose]}"}
        if whose == "leaver":
            body |= {"model": model, "stream": self.dice.random() < 0.7, "max_tokens": 200, "n": 1, "ignore_eos": True}
            body = {key: value for key, value in body.items() if key not in ("stream_options", "echo", "temperature")}
            self.left["requests"] += 1
            self.left["prompt"] += sum(map(len, body["prompt"]))
            self.left["made"] += 200 * len(body["prompt"])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.dice.uniform(0.05, 0.2)):
                    async with self.session.post(COMPLETIONS, json=body, headers=headers) as response:
                        async for _ in response.content:
                            pass
            return
        async with self.session.post(COMPLETIONS, json=body, headers=headers) as response:
            self.statuses[response.status] += 1
            text = await response.text()
        if response.status != 200:
            return
        if body.get("stream"):
            *_, last, done, _ = text.split("\n\n")
            assert done == "data: [DONE]"
            text = last.removeprefix("data: ")
        answer = msgspec.json.decode(text)
        assert "usage" in answer, text
        usage = answer["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        counts = {"requests": 1, "prompt": usage["prompt_tokens"], "cached": cached, "made": usage["completion_tokens"]}
        for what, count in counts.items():
            self.sums[whose, model, what] += count


async def test_the_ledger_is_the_sum_of_what_answers_say(tmp_path: Path) -> None:
    base, state = make_tiny(tmp_path / "base"), tmp_path / "state.sqlite"
    file, keys = TenantFile(state), dict[str, str]()
    for name, limits in (("narrow", Limits(running_max=1, waiting_max=1)), *((n, Limits()) for n in ("one", "two"))):
        keys[name], _ = file.add_key(file.put(Tenant(name, 0, limits=limits)).name)
    keys["leaver"], _ = file.add_key(file.put(Tenant("leaver", 0)).name)
    adapter = make_adapter(tmp_path / "a", open_model(base).config, rank=8)
    options = ServerConfig(
        port=0, served_model_name="base", tenants=True, state_file=str(state), lora_modules=[f"a={adapter}"]
    )
    server = Server(EngineConfig(model=str(base), kv_cache_memory_bytes=4 << 20), options)
    url = await server.start()
    try:
        async with aiohttp.ClientSession(base_url=url) as session:
            asker, turns = Asker(session, keys, seed=11), asyncio.Semaphore(12)

            async def one() -> None:
                async with turns:
                    await asker.ask()

            await asyncio.gather(*(one() for _ in range(REQUESTS)))
    finally:
        await server.stop()
    found: Counter[tuple[str, str, str]] = Counter()
    for row in file.usage():
        used = row.used
        for what, count in zip(("requests", "prompt", "cached", "made"), used[:4], strict=True):
            found[row.tenant if row.tenant != "leaver" else "", row.model, what] += count
    left = {
        what: sum(count for (whose, _, of), count in found.items() if not whose and of == what)
        for what in ("requests", "prompt", "cached", "made")
    }
    assert {key: count for key, count in found.items() if key[0] and count} == {
        key: count for key, count in asker.sums.items() if count
    }
    assert asker.statuses.keys() >= {200, 400, 404, 429}, asker.statuses
    assert 0 < left["requests"] <= asker.left["requests"] and left["made"] <= asker.left["made"]
    assert left["cached"] <= left["prompt"] <= asker.left["prompt"]
    file.close()
