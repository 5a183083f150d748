"""A replica is killed under load, one is added, popularity drifts: what clients notice and what the router moves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from lorad import _core

from policies import WARM, moves_of, total
from rig import Replica, Rig
from traffic import Seen, play, service_seconds

LOOK_SECONDS = 0.1


class Phase(NamedTuple):
    """From one event to the next, seconds."""

    name: str
    begins: float
    ends: float


class Look(NamedTuple):
    """The router's counters at a moment."""

    at: float
    moves: int
    preloads: int
    page_ins: int


@dataclass
class Timeline:
    """All that happened."""

    phases: list[Phase]
    seen: list[Seen] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    retries: int = 0

    def _in(self, phase: Phase) -> list[Look]:
        return [look for look in self.looks if phase.begins <= look.at < phase.ends]

    def moves_in(self, phase: Phase) -> int:
        """Homes moved."""
        looks = self._in(phase)
        return looks[-1].moves - looks[0].moves if looks else 0

    def preloads_in(self, phase: Phase) -> int:
        """Adapters loaded where they live."""
        looks = self._in(phase)
        return looks[-1].preloads - looks[0].preloads if looks else 0

    def balance_seconds(self, phase: Phase) -> float | None:
        """From the event to the last home that was moved, or adapter that was loaded there; None: none was."""
        looks = self._in(phase)
        pairs = itertools.pairwise(looks)
        changed = [b.at for a, b in pairs if (a.moves, a.preloads) != (b.moves, b.preloads)]
        return changed[-1] - phase.begins if changed else None


async def measure(rig: Rig, seconds: float, say: Callable[[str], None]) -> Timeline:
    """Four phases of so many seconds."""
    plan = rig.plan
    names = ("calm", "one is killed", "one is added", "popularity drifts")
    phases = [Phase(name, index * seconds, (index + 1) * seconds) for index, name in enumerate(names)]
    killed, added, drifts = (phase.begins for phase in phases[1:])
    timeline = Timeline(phases)
    extra: list[Replica] = []
    async with rig.replicas() as replicas:
        service = await service_seconds([one.url for one in replicas], plan.prompt, WARM, plan.seed)
        rate = plan.load * plan.replicas / service
        gap = round(1e6 / rate)
        count = max(round(4 * seconds * rate), 1)
        asked = _core.fleet_requests(f"adapters={plan.adapters} requests={count} gap_us={gap} seed={plan.seed}")
        asked = [one for one in asked if one[0] < 4e6 * seconds]
        say(f"{rate:.1f} requests a second for {4 * seconds:.0f} s")
        # It takes seconds to start, which aren't the router's: it's there before it's added.
        extra.append(await rig.replica())
        try:
            async with rig.routed(replicas, "cost") as (address, front):
                began = time.perf_counter()

                async def happen() -> None:
                    await asyncio.sleep(killed)
                    replicas[0].kill()
                    say("one is killed")
                    await asyncio.sleep(began + added - time.perf_counter())
                    front.replicas.add(extra[0].url)
                    say("one is added")

                async def look() -> None:
                    while True:
                        page_ins = sum(
                            last.page_ins
                            for one in front.replicas
                            if one.number is not None and (last := front.router.inventory(one.number)) is not None
                        )
                        at, preloads = time.perf_counter() - began, total(front, "lorad_router_prewarms_total")
                        timeline.looks.append(Look(at, moves_of(front), round(preloads), page_ins))
                        await asyncio.sleep(LOOK_SECONDS)

                def name(at: float, adapter: int) -> str:
                    other = (adapter + plan.adapters // 2) % plan.adapters
                    return f"a{adapter if at < drifts else other}"

                tasks = [asyncio.create_task(happen()), asyncio.create_task(look())]
                timeline.seen = await play(address, asked, plan.prompt, name=name, seed=plan.seed)
                timeline.retries = round(total(front, "lorad_router_retries_total"))
                for task in tasks:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
        finally:
            for one in extra:
                await one.stop()
    return timeline
