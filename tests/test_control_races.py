"""Loads, reloads, unloads, pins, requests, deaths of the engine and stops of the server at random.

Whatever met whatever: afterwards the engine holds, the cache keeps and the state file knows what names have in force,
no more and no less, and each name answers with what it has. 300 worlds by
`LORAD_RACES=300 make test-python ARGS=tests/test_control_races.py`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from controlling import ADAPTERS, Control, another_engine, controlling
from lorad.control import on_demand, setup
from lorad.errors import EngineFailure
from lorad.sources.cache import AdapterCache
from lorad.store.state import STATE_FILE, StateFile, by_base
from scripted_engine import ScriptedEngine, model_info
from serving import CONTEXT, VOCAB

RACES = int(os.environ.get("LORAD_RACES", "4"))
NAMES = ("x", "y", "z")
REGISTERED = ("one", "same")
"""Sub-folders of the registry, whose names are adapters as well."""
CONTENTS = {"one": "one", "same": "one", "two": "two", "broken": "broken"}
PAUSES = (0.0, 0.0, 0.002, 0.02)
CLEAN = {"adapter_exists", "adapter_not_found", "adapter_not_ready", "adapter_rank", "engine_gone", "load_cancelled"}
"""Why something may be refused here."""
CLEAN |= {"engine_died", "pins_full", "adapter_unloaded", "model_not_found"}


class Race:
    """One world: a server, and what is done to it."""

    def __init__(self, control: Control, random: Random) -> None:
        self.control = control
        self.random = random
        self.refused: Counter[str] = Counter()
        self._dying = asyncio.Lock()

    async def run(self, actions: int) -> None:
        """So many things, most of them while others go on; not all have ended when this returns."""
        doing: set[asyncio.Task[None]] = set()
        for _ in range(actions):
            self.control.engine.pause = self.random.choice(PAUSES)
            what = self.random.choices(
                (self.load, self.reload, self.unload, self.pin, self.ask, self.die), weights=(6, 3, 6, 3, 4, 1)
            )[0]
            doing.add(asyncio.create_task(what(self.random.choice((*NAMES, *REGISTERED)))))
            await asyncio.sleep(self.random.choice(PAUSES))
        _, left = await asyncio.wait(doing, timeout=self.random.choice((0.0, 20.0)))
        async with self._dying:  # who serves sees an engine's start to its end
            for one in left:
                one.cancel()
        for end in await asyncio.gather(*doing, return_exceptions=True):
            assert end is None or isinstance(end, asyncio.CancelledError), end

    async def load(self, name: str, **fields: Any) -> None:
        source = str(self.control.root / self.random.choice(list(CONTENTS)))
        await self._ask("PUT", name, source=source, pinned=self.random.random() < 0.2, **fields)

    async def reload(self, name: str) -> None:
        await self.load(name, reload=True)

    async def unload(self, name: str) -> None:
        await self._ask("DELETE", f"{name}?wait_seconds=20{self.random.choice(('', '&within_seconds=0'))}")

    async def pin(self, name: str) -> None:
        await self._ask("PATCH", name, pinned=self.random.random() < 0.7)

    async def ask(self, name: str) -> None:
        status, answer = await self.control.client.post("/v1/completions", model=name, prompt="hi", max_tokens=2)
        self._saw(status, answer)

    async def die(self, name: str) -> None:
        async with self._dying:
            self.control.engine.die(EngineFailure("the engine process has ended unexpectedly", code="engine_died"))
            await asyncio.sleep(self.random.choice(PAUSES))
            await another_engine(self.control)

    async def _ask(self, method: str, path: str, **fields: Any) -> None:
        self._saw(*await self.control.ask(method, f"{ADAPTERS}/{path}", **fields))

    def _saw(self, status: int, answer: Any) -> None:
        if status >= 400:
            assert answer["error"]["code"] in CLEAN, answer
            self.refused[answer["error"]["code"]] += 1


async def hold_together(control: Control, cache: AdapterCache, state: Path) -> None:
    """Nothing is held that no name has, and nothing is missing."""
    await control.settled()
    manager, engine = control.manager, control.engine
    ready = [record for record in manager.records if record.info is not None]
    assert all(record.state in ("ready", "failed") and not record.busy for record in manager.records)
    assert +engine.held == Counter(record.info.generation for record in ready if record.info)
    assert +engine.pins == Counter(record.info.generation for record in ready if record.info and record.pinned)
    digests = Counter(record.digest for record in ready)
    assert {entry.digest: cache.held(entry.digest) for entry in cache.listing() if cache.held(entry.digest)} == digests
    assert manager.registry.adapters == {record.name: record.info for record in ready}
    rows = {row.name: row for _, row in by_base(state)}
    assert rows.keys() == {record.name for record in manager.records if record.kept}
    for record in ready:
        row = rows.get(record.name)
        assert record.on_demand == (row is None)
        assert row is None or (row.source, row.digest, row.wanted_source) == (record.source, record.digest, "")
        assert row is None or row.pinned >= record.pinned  # a pin that found no room after a start is still asked for
        assert record.info is not None and await control.generation(record.name) == record.info.generation


def slow(random: Random, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same on a disk that takes its time, before or after what it does."""

    def taking(*arguments: Any, **options: Any) -> Any:
        time.sleep(random.choice(PAUSES))
        try:
            return function(*arguments, **options)
        finally:
            time.sleep(random.choice(PAUSES))

    return taking


@pytest.mark.parametrize("seed", range(RACES))
async def test_nothing_is_left_and_nothing_is_lost(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random, caches = Random(seed), list[AdapterCache]()

    def made(*arguments: Any) -> AdapterCache:
        caches.append(AdapterCache(*arguments))
        return caches[-1]

    monkeypatch.setattr(setup, "AdapterCache", made)
    monkeypatch.setattr(on_demand, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(on_demand, "MISSING_SECONDS", 0.0)
    for owner, method in ((AdapterCache, "obtain"), (StateFile, "want"), (StateFile, "keep"), (StateFile, "remove")):
        monkeypatch.setattr(owner, method, slow(random, getattr(owner, method)))
    root = tmp_path / "root"
    options: dict[str, Any] = {"adapter_registry": str(root), "max_on_demand_adapters": 1}
    for stops in (True, False):
        engine = ScriptedEngine(info=model_info(VOCAB, CONTEXT))
        engine.bad = "broken"
        async with controlling(tmp_path, engine, **options) as control:
            for name, content in CONTENTS.items():
                control.write(name, content)
            race = Race(control, random)
            await race.run(30)
            if not stops:
                await hold_together(control, caches[-1], tmp_path / STATE_FILE)
        caches[-1].close()
