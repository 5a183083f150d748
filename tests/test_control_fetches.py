"""Sources that hang: they cost their own loads only, and a bounded number of threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlling import ADAPTERS, controlling
from lorad.control import fetches
from lorad.control.fetches import HUNG_MAX, PLACE_MAX, RUNNING_MAX, Fetches, place_of
from lorad.errors import LoradError
from lorad.sources.local import LocalFolder
from lorad.sources.policy import SourcePolicy
from lorad.sources.source import parse_source

SECONDS = 0.01
LONG = 60.0


class World:
    """Places, of which some hang until `wake`."""

    def __init__(self) -> None:
        self.fetches = Fetches()
        self.wake = threading.Event()
        self.begun: list[str] = []
        self.undone: list[str] = []
        self.gave_up: list[bool] = []

    def ask(self, place: str, *, hangs: bool = False, seconds: float = LONG) -> asyncio.Task[str]:
        def work(given_up: Callable[[], bool]) -> str:
            self.begun.append(place)
            if hangs:
                assert self.wake.wait(LONG)
                self.gave_up.append(given_up())
            return place

        run = self.fetches.run(place, f"a source of {place}", work, seconds, self.undone.append)
        return asyncio.create_task(run)

    async def hang(self, place: str, count: int) -> None:
        """Has so many of a place hang and be given up."""
        asked = [self.ask(place, hangs=True, seconds=SECONDS) for _ in range(count)]
        assert [code(error) for error in await asyncio.gather(*asked, return_exceptions=True)] == [
            "source_timeout"
        ] * count

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONG):
            while not done():
                await asyncio.sleep(0.001)


def code(error: object) -> str:
    assert isinstance(error, LoradError)
    return error.code


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(fetches, "GRACE_SECONDS", 0.0)
    world = World()
    yield world
    world.wake.set()


async def test_a_place_that_hangs_leaves_threads_to_others(world: World) -> None:
    """Also before its fetches are given up."""
    asked = [world.ask("dead", hangs=True) for _ in range(RUNNING_MAX)]
    await world.until(lambda: len(world.begun) == PLACE_MAX)
    assert await world.ask("well") == "well"
    assert world.begun.count("dead") == PLACE_MAX
    world.wake.set()
    assert await asyncio.gather(*asked) == ["dead"] * RUNNING_MAX and not any(world.gave_up) and not world.undone


async def test_fetches_that_are_given_up_are_replaced(world: World) -> None:
    """So that however many places hang, others go on."""
    for number in range(3 * RUNNING_MAX // PLACE_MAX):
        await world.hang(f"dead {number}", PLACE_MAX)
        assert await world.ask("well") == "well"


async def test_a_place_where_too_many_hang_refuses_at_once_until_one_ends(world: World) -> None:
    await world.hang("dead", PLACE_MAX - 1)
    last = world.ask("dead", hangs=True, seconds=SECONDS)
    waits = world.ask("dead")
    assert [code(one) for one in await asyncio.gather(last, waits, return_exceptions=True)] == [
        "source_timeout",
        "source_hung",
    ]
    with pytest.raises(LoradError, match="a source of dead") as refusal:
        await world.ask("dead")
    assert refusal.value.code == "source_hung" and len(world.begun) == PLACE_MAX
    world.wake.set()
    await world.until(lambda: len(world.undone) == PLACE_MAX)
    assert all(world.gave_up), "each could have ended by itself"
    assert await world.ask("dead") == "dead"


async def test_so_many_threads_hang_and_no_more(world: World) -> None:
    places = HUNG_MAX // PLACE_MAX
    for number in range(places):
        await world.hang(f"dead {number}", PLACE_MAX)
    for number in range(RUNNING_MAX // PLACE_MAX):
        await world.hang(f"dead {places + number}", PLACE_MAX)
    waits = world.ask("well")
    await asyncio.sleep(0.05)
    assert not waits.done() and len(world.begun) == HUNG_MAX + RUNNING_MAX
    world.wake.set()
    assert await waits == "well"


async def test_who_gives_up_gives_the_turn_back(world: World) -> None:
    running = [world.ask("busy", hangs=True) for _ in range(PLACE_MAX)]
    waits = [world.ask("busy") for _ in range(3)]
    await world.until(lambda: len(world.begun) == PLACE_MAX)
    for one in (waits[0], running[0]):
        one.cancel()
    world.wake.set()
    assert await asyncio.gather(*running[1:], *waits[1:]) == ["busy"] * (PLACE_MAX + 1)
    await world.until(lambda: bool(world.undone))
    assert world.undone == ["busy"], "what nobody waits for any more"


async def test_a_system_without_threads_fails_that_fetch_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for _ in range(2 * RUNNING_MAX):
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="new thread"):
            patch.setattr(threading.Thread, "start", none_left)
            await world.ask("well")
    assert await world.ask("well") == "well"


async def test_nothing_is_begun_after_the_end(world: World) -> None:
    running = [world.ask("busy", hangs=True) for _ in range(PLACE_MAX)]
    waits = world.ask("busy")
    await world.until(lambda: len(world.begun) == PLACE_MAX)
    world.fetches.close()
    with pytest.raises(asyncio.CancelledError):
        await waits
    world.wake.set()
    await asyncio.gather(*running)
    assert len(world.begun) == PLACE_MAX


def test_what_hangs_together() -> None:
    policy = SourcePolicy(roots=(Path("/a"), Path("/b")), schemes=frozenset({"hf", "s3", "https"}))
    places = [
        place_of(parse_source(text, policy))
        for text in (
            "x/y",
            "/a/x",
            "/b/x",
            "hf://one/x",
            "hf://two/x",
            "s3://bucket/x",
            "https://host:8/x",
            "https://host/x",
        )
    ]
    assert places == ["/a, /b", "/a", "/b", "hf://", "hf://", "s3://", "host:8", "host"]


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root whose disk hangs, once `disk` is made there; until the test's end."""
    root, wake, items = tmp_path / "dead", threading.Event(), LocalFolder.items

    def hang(folder: LocalFolder, transfer: Any) -> Any:
        if (root / "disk").exists() and folder.resolved.startswith(str(root)):
            assert wake.wait(LONG)
        return items(folder, transfer)

    monkeypatch.setattr(LocalFolder, "items", hang)
    root.mkdir()
    yield root
    wake.set()


def write(root: Path, name: str) -> str:
    (root / name).mkdir()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (root / name / file).write_text(f"{file} of {name}")
    return str(root / name)


async def test_loads_from_a_dead_disk_leave_other_loads_alone(tmp_path: Path, dead: Path) -> None:
    """And what is in the cache needs no source."""
    async with controlling(tmp_path, adapter_roots=[str(tmp_path / "root"), str(dead)]) as control:
        known = write(dead, "known")
        assert (await control.load("known", known))[0] == 200
        digest = (await control.card("known"))["digest"]
        (dead / "disk").touch()
        for number in range(2 * RUNNING_MAX):
            status, _ = await control.ask("PUT", f"{ADAPTERS}/n{number}", source=write(dead, f"{number}"))
            assert status == 202
        assert (await control.load("well", control.write("well", "content")))[0] == 200
        assert (await control.load("again", known, digest=digest))[0] == 200
        assert (await control.unload("n0"))[0] == 200


async def test_a_dead_disk_is_told(tmp_path: Path, dead: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches, "GRACE_SECONDS", 0.0)
    (dead / "disk").touch()
    async with controlling(tmp_path, adapter_roots=[str(dead)], adapter_fetch_seconds=0.2) as control:
        loads = [control.load(f"n{number}", write(dead, f"{number}")) for number in range(2 * PLACE_MAX)]
        told = [answer["error"]["code"] for _, answer in await asyncio.gather(*loads)]
        assert sorted(told) == ["source_hung"] * PLACE_MAX + ["source_timeout"] * PLACE_MAX
