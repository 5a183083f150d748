"""What a server tells routers of itself: all of it, then what changes, as the engine says it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from controlling import KEY, Control, controlling
from lorad.engine.messages import AdapterStats, Stats, Waits
from lorad.errors import Unavailable
from lorad.fleet.inventory import EVERY_SECONDS, PATH, ROUTE_HEADER, Inventory
from lorad.server.inventories import ROUTERS_MAX, Peak
from lorad.server.pace import Pace
from scripted_engine import empty_stats

HEADERS = {"Authorization": f"Bearer {KEY}"}


class Listener:
    """A router's side of a stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> Inventory:
        line = await self._response.content.readuntil(b"\n\n")
        if not line:
            raise EOFError
        assert line.startswith(b"data: ")
        return msgspec.json.decode(line[6:], type=Inventory)

    async def until(self, found: object) -> Inventory:
        """The first one for which `found` holds."""
        async with asyncio.timeout(10):
            while True:
                event = await self.next()
                if found(event):  # type: ignore[operator]
                    return event


@contextlib.asynccontextmanager
async def listening(control: Control, router: str = "r") -> AsyncIterator[Listener]:
    url = f"{control.client.address}{PATH}?router={router}"
    async with control.client.session.get(url, headers=HEADERS) as response:
        assert response.status == 200, await response.text()
        yield Listener(response)


async def test_all_of_it_and_then_what_changes(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        for name in ("a", "b"):
            assert (await control.load(name, control.write(name, name)))[0] == 200
        (one,) = (record.info for record in control.manager.records if record.name == "a")
        assert one is not None
        async with listening(control) as router:
            whole = await router.next()
            assert (whole.base, whole.model, whole.seen) == (None, "base", 0)
            assert {card.name: card.tier for card in whole.adapters} == {"a": "warm", "b": "warm"}
            assert whole.adapters[0].generation == one.generation and whole.adapters[0].bytes == one.bytes
            assert whole.adapters[0].source.endswith("/a")
            assert whole.loads.warm == 1e-6, "0.001 s for 1,000 bytes"
            assert whole.loads.absent is not None and whole.loads.cold is not None
            assert whole.loads.absent >= whole.loads.cold >= whole.loads.warm
            assert whole.adapter_bytes_max == 63 * 1024 and whole.adapter_bytes == 3 * 1024
            control.engine.hot.add(one.generation)
            change = await router.until(lambda event: event.adapters)
            assert [(card.name, card.tier) for card in change.adapters] == [("a", "hot")]
            control.engine.hot.clear()
            assert (await control.unload("b"))[0] == 200
            seen = set()
            last = change.number
            while {("a", "warm"), ("b", "absent")} - seen:
                event = await router.next()
                assert event.base == last and event.number > last
                last = event.number
                seen |= {(card.name, card.tier) for card in event.adapters}
            assert (await control.ask("PUT", "/v1/lora_aliases/alias", target="a"))[0] == 200
            assert (await router.until(lambda event: event.aliases is not None)).aliases == {"alias": "a"}


async def test_which_requests_of_this_router_have_come(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control, listening(control, "mine") as router:
        await router.next()
        for sent in ("mine:7", "mine:5", "other:99", "mine:", "mine:9x"):
            body = msgspec.json.encode({"model": "base", "prompt": "hi", "max_tokens": 2})
            headers = {"Content-Type": "application/json", ROUTE_HEADER: sent}
            await control.client.raw("/v1/completions", body, headers)
        assert (await router.until(lambda event: event.seen)).seen == 7
        headers = {"Content-Type": "application/json", ROUTE_HEADER: "mine:12"}
        assert (await control.client.raw("/v1/completions", b"{", headers))[0] == 400
        assert (await router.until(lambda event: event.seen != 7)).seen == 12, "a refused one has come, too"


async def test_the_queue_is_counted_in_what_tokens_took(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control, listening(control) as router:
        first = await router.next()
        assert (first.token_seconds, first.queue_seconds) == (None, 0.0)
        control.engine.waits = Waits("base", 0.0, 0.0)
        status, answer = await control.client.post("/v1/completions", model="base", prompt="hello", max_tokens=5)
        assert status == 200
        measured = await router.until(lambda event: event.token_seconds is not None)
        assert measured.token_seconds is not None and measured.token_seconds > 0
        tokens = answer["usage"]["prompt_tokens"]
        assert measured.token_bytes == pytest.approx(
            len(msgspec.json.encode({"model": "base", "prompt": "hello", "max_tokens": 5})) / tokens
        )
        control.engine.auto = False
        waiting = asyncio.create_task(
            control.client.post("/v1/completions", model="base", prompt="hello", max_tokens=3)
        )
        queued = await router.until(lambda event: event.queue_seconds > 0)
        assert queued.queue_seconds == pytest.approx(tokens * measured.token_seconds)
        control.engine.step()
        answering = await router.until(lambda event: event.queue_seconds < queued.queue_seconds)
        assert answering.queue_seconds == pytest.approx(measured.token_seconds), "a token of it is in each step"
        control.engine.auto = True
        control.engine.step()
        control.engine.step()
        assert (await waiting)[0] == 200


async def test_it_wants_the_control_key_and_a_router(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        for key, path, status, code in (
            ("", f"{PATH}?router=r", 401, "missing_api_key"),
            ("wrong", f"{PATH}?router=r", 401, "invalid_api_key"),
            (KEY, PATH, 400, "field_form"),
            (KEY, f"{PATH}?router=a%20b", 400, "field_form"),
        ):
            answer = await control.ask("GET", path, key=key)
            assert (answer[0], answer[1]["error"]["code"]) == (status, code)
        async with contextlib.AsyncExitStack() as stack:
            for number in range(ROUTERS_MAX):
                await stack.enter_async_context(listening(control, f"r{number}"))
            full = await control.ask("GET", f"{PATH}?router=more")
            assert (full[0], full[1]["error"]["code"]) == (429, "routers_full")
            again = await stack.enter_async_context(listening(control, "r0"))
            assert (await again.next()).base is None, "who comes again may come before the end was noticed"


async def test_an_engine_that_dies_ends_the_stream(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control, listening(control) as router:
        await router.next()
        control.engine.fault = Unavailable("gone", code="engine_gone")
        with pytest.raises(EOFError):
            await router.until(lambda event: False)
        control.engine.fault = None


async def test_an_engine_in_a_long_step_isnt_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with controlling(tmp_path) as control, listening(control) as router:
        first = await router.next()

        async def never() -> Stats:
            await asyncio.sleep(60)
            raise AssertionError

        monkeypatch.setattr(control.engine, "stats", never)
        for _ in range(2):
            later = await router.next()
            assert later.pages == first.pages and later.base is not None, "what it said last"
        control.client.front.drain()
        assert (await router.until(lambda event: event.draining)).number > later.number
        control.engine.fault = Unavailable("it has not answered for a minute", code="engine_stalled")
        with pytest.raises(EOFError):
            await router.until(lambda event: False)
        control.engine.fault = None


async def test_a_server_that_drains_says_so(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control, listening(control) as router:
        assert not (await router.next()).draining
        control.client.front.drain()
        assert (await router.until(lambda event: event.draining)).number > 1


async def test_states_as_tiers(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        assert (await control.load("a", control.write("a", "a")))[0] == 200
        (record,) = control.manager.records
        assert record.info is not None
        for state, tier in (("cold", "warm"), ("loading", "loading"), ("hot", "hot"), ("failed", "warm")):
            control.engine.stats_now = empty_stats(adapters={record.info.generation: AdapterStats(state, 0, 0, 3)})
            await asyncio.sleep(EVERY_SECONDS)  # one look is for all that listen then
            async with listening(control) as router:
                assert [card.tier for card in (await router.next()).adapters] == [tier]


def test_the_peak_is_the_most_of_the_last_minute() -> None:
    clock = [0.0]
    peak = Peak(60, now=lambda: clock[0])
    figures = [(0, 5), (10, 9), (20, 3), (30, 7), (71, 1), (89, 2), (92, 1), (200, 0)]
    said = []
    for at, figure in figures:
        clock[0] = at
        said.append(peak.saw(figure))
        assert said[-1] == max(value for when, value in figures if at - 60 <= when <= at)
    assert said == [5, 9, 9, 9, 7, 7, 2, 0]


def test_nothing_was_measured_yet() -> None:
    pace = Pace([])
    assert (pace.token_seconds, pace.token_bytes, pace.queue_seconds, pace.before()) == (None, None, 0.0, 0)
