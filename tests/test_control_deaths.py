"""The engine's death while adapters are loaded: what was asked for is in force afterwards, whatever it met."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from controlling import another_engine, controlling
from lorad.errors import EngineFailure
from lorad.store.state import StateFile

DIED = EngineFailure("the engine process has ended unexpectedly", code="engine_died")


async def test_a_reload_isnt_undone_by_what_the_engine_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be brought back was looked up before the reload was written down, and brought after it."""
    there, adapters = threading.Event(), StateFile.adapters

    def hangs(file: StateFile) -> Any:
        rows = adapters(file)
        assert there.wait(20)
        return rows

    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
        before = await control.generation("x")
        control.engine.die(DIED)
        monkeypatch.setattr(StateFile, "adapters", hangs)
        again = asyncio.create_task(another_engine(control))
        await asyncio.sleep(0.01)
        newer = control.write("b", "two")
        reload = asyncio.create_task(control.load("x", newer, reload=True))
        async with asyncio.timeout(20):
            while not control.manager.record("x").loads:
                await asyncio.sleep(0.002)
        there.set()
        await again
        assert (await reload)[0] == 200
        await control.settled()
        assert (await control.card("x"))["source"] == newer and await control.generation("x") not in (None, before)
        assert sum(control.engine.held.values()) == 1


async def test_a_load_that_was_written_down_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine dies between that and the switch: the load fails, and what it loaded is brought back, to stay."""
    there, keep = threading.Event(), StateFile.keep

    def hangs(file: StateFile, *arguments: str) -> None:
        keep(file, *arguments)
        assert there.wait(20)

    async with controlling(tmp_path) as control:
        monkeypatch.setattr(StateFile, "keep", hangs)
        load = asyncio.create_task(control.load("x", control.write("a", "one")))
        async with asyncio.timeout(20):
            while not control.engine.held:
                await asyncio.sleep(0.002)
        control.engine.die(DIED)
        again = asyncio.create_task(another_engine(control))
        await asyncio.sleep(0.01)
        there.set()
        await again
        assert (await load)[1]["error"]["code"] == "engine_gone"
        await control.settled()
        card = await control.card("x")
        assert (card["state"], card["kept"], card["on_demand"]) == ("ready", True, False)
        assert await control.generation("x") is not None
