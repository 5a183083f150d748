"""`_core.Fleet`: what the router decides arrives in Python as it was decided. The decisions have tests in Rust."""

from __future__ import annotations

from typing import Any

import pytest

from lorad import _core

MS = 1000
LOADS = {"warm": (50 * MS, 0), "cold": (200 * MS, 0), "absent": (800 * MS, 0)}
ASK: dict[str, Any] = {"tokens": 1, "blocks": []}


def published(**changed: Any) -> dict[str, Any]:
    idle = {
        **{"number": 1, "base": None, "seen": 0, "queue_us": 0, "token_ns": 0, "adapter_kib_max": 1 << 40},
        **{"draining": False, "tiers": []},
    }
    return {**idle, **LOADS, **changed}


def chapter() -> tuple[_core.Fleet, int]:
    """The example of 200, 50 and 130 ms."""
    fleet = _core.Fleet("cost", away_loads=0)
    for key in range(3):
        assert fleet.add_replica(key, 1) == key
    adapter = fleet.add_adapter(37, 160 << 10)
    for replica, queue, tier in ((0, 200, "hot"), (1, 0, "warm"), (2, 130, "hot")):
        fleet.publish(replica, 0, **published(queue_us=queue * MS, tiers=[(adapter, tier)]))
    return fleet, adapter


def test_the_example_of_the_chapter() -> None:
    fleet, adapter = chapter()
    found = fleet.candidates(0, adapter=adapter, **ASK)
    assert [(replica, sum(cost.values())) for replica, _, cost in found] == [(0, 200000), (1, 50000), (2, 130000)]
    assert sum(home for _, home, _ in found) == len(fleet.homes(adapter)) == 1
    choice = fleet.route(0, adapter=adapter, **ASK)
    cost = {"queue": 0, "prefix": 0, "load": 50 * MS, "risk": 0, "displaced": 0}
    assert (choice["number"], choice["replica"], choice["cost"]) == (1, 1, cost)
    assert (choice["runner_up"][0], choice["runner_up"][2]["queue"]) == (2, 130 * MS)
    assert fleet.heat(adapter, 0) == 1.0


def test_refusals_have_codes() -> None:
    fleet, adapter = chapter()
    refused: list[tuple[str, Any]] = [
        ("unknown_replica", lambda: fleet.fail(3, 0)),
        ("unknown_replica", lambda: fleet.publish(3, 0, **published())),
        ("unknown_adapter", lambda: fleet.publish(0, 0, **published(tiers=[(1, "hot")]))),
        ("unknown_adapter", lambda: fleet.route(0, adapter=1, **ASK)),
        ("unknown_adapter", lambda: fleet.homes(1)),
        ("inventory_gap", lambda: fleet.publish(0, 0, **published(base=7))),
        ("no_replica", lambda: fleet.route(10**9, adapter=None, **ASK)),
    ]
    for code, call in refused:
        with pytest.raises(_core.FleetRefused) as caught:
            call()
        assert caught.value.code == code
    for wrong in (
        lambda: _core.Fleet("best"),
        lambda: fleet.publish(0, 0, **published(tiers=[(adapter, "lukewarm")])),
    ):
        with pytest.raises(ValueError, match=r"best|lukewarm"):
            wrong()
    with pytest.raises(TypeError, match="fastest"):
        _core.Fleet("cost", fastest=1)


def test_replicas_and_adapters_come_and_go() -> None:
    fleet, adapter = chapter()
    home = fleet.homes(adapter)[0]
    fleet.fail(1, 5)
    assert [fleet.is_live(replica, 5) for replica in (0, 1, 2, 3)] == [True, False, True, False]
    fleet.remove_replica(home, 5)
    assert fleet.homes(adapter) not in ([], [home])
    assert fleet.add_replica(9, 1) == 3
    fleet.remove_adapter(adapter)
    with pytest.raises(_core.FleetRefused, match=f"no adapter {adapter}"):
        fleet.heat(adapter, 0)
    assert fleet.add_adapter(38, 1) == adapter + 1


def test_what_is_asked_for_everywhere_gets_homes_within_the_budget() -> None:
    fleet, adapter = chapter()
    for _ in range(100):
        fleet.route(0, adapter=adapter, **ASK)
    moves = fleet.rebalance(1, 1)
    assert [(of, lost, reason) for of, lost, _, reason in moves] == [(adapter, None, "popular")]
    assert moves[0][2] in fleet.homes(adapter)
    fleet.rebalance(2, 10)
    assert sorted(fleet.homes(adapter)) == [0, 1, 2]
    assert "cost" in _core.FLEET_POLICIES and len(_core.FLEET_POLICIES) == 4
