"""Short storms (`storm.py`, which `make storm` runs for longer): right answers, no leaks, kill -9."""

from __future__ import annotations

from pathlib import Path

import pytest

from storm import cycles, kills, storm_for
from storm_world import World, make_world

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(smollm2_gguf, tmp_path_factory.mktemp("world"), contents=7)


async def test_every_answer_in_a_storm_is_right_and_nothing_is_left(world: World, tmp_path: Path) -> None:
    storm, before, after = await storm_for(world, tmp_path, 8, seed=1)
    assert not storm.wrong and storm.counts["answers"] > 50 and storm.counts["load"] > 20
    for left in (before, after):
        assert left["adapters"] == 0 and left["pages of adapters"] == 0
    assert after["open files"] <= before["open files"] + 2 and after["threads"] <= before["threads"] + 2


async def test_what_was_asked_for_survives_kills(world: World, tmp_path: Path) -> None:
    storm = await kills(world, tmp_path, 3, seed=2)
    assert not storm.wrong and storm.counts["kills"] == 3 and storm.counts["load"] > 5


async def test_loads_and_unloads_leave_nothing(world: World, tmp_path: Path) -> None:
    storm, left = await cycles(world, tmp_path, 40)
    assert not storm.wrong
    first, last = left[4], left[-1]
    assert last["adapters"] == 0 and last["pages of adapters"] == 0
    assert last["open files"] <= first["open files"] and last["threads"] <= first["threads"]
    assert last["series of metrics"] <= first["series of metrics"]
