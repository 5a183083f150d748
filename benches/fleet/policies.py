"""Round robin beside lorad's router, over real replicas, and what the simulator says of both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from lorad import _core
from lorad.bench.figures import rank
from lorad.fleet.app import RouteFront
from lorad.simulate.fleet import simulate_fleet

from rig import Plan, Rig, Sizes
from traffic import Seen, play, service_seconds

SAMPLE_SECONDS = 0.05
POLICIES = ("round-robin", "cost")
WARM = 12
"""Requests of each replica before anything counts."""


@dataclass
class Figures:
    """Of a run, real or simulated."""

    cold_loads: int
    """Requests that waited for a load of their own."""
    preloads: int
    mib_max: float
    """The most adapters on a replica."""
    ttft_p50_s: float
    ttft_p99_s: float
    failed: int = 0


@dataclass
class Run:
    """A policy's."""

    policy: str
    real: Figures
    simulated: Figures
    service_s: float
    """Measured, the mean; the simulator was told all."""
    way_s: float
    """From client to server and back, the router in between: the simulator knows nothing of it."""
    load_s: float
    moves: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Peaks:
    """The most that each replica's adapters took, and how many page-ins it made."""

    def __init__(self, front: RouteFront) -> None:
        self._front = front
        self.bytes: dict[str, int] = {}
        self.page_ins: dict[str, int] = {}
        self.load_seconds: dict[str, float] = {}
        """For a byte."""

    def look(self) -> None:
        """Takes what was published last."""
        for replica in self._front.replicas:
            last = None if replica.number is None else self._front.router.inventory(replica.number)
            if last is not None:
                self.bytes[replica.name] = max(self.bytes.get(replica.name, 0), last.adapter_bytes)
                self.page_ins[replica.name] = last.page_ins
                if last.loads.warm is not None:
                    self.load_seconds[replica.name] = last.loads.warm

    async def watch(self) -> None:
        """For ever."""
        while True:
            self.look()
            await asyncio.sleep(SAMPLE_SECONDS)


async def measure(rig: Rig, say: Callable[[str], None]) -> tuple[float, list[Run]]:
    """All policies on the same requests; requests per second, and a run of each."""
    plan = rig.plan
    rate, runs = 0.0, []
    for policy in POLICIES:
        say(f"starting {plan.replicas} replicas for {policy}")
        async with rig.replicas() as replicas:
            service = await service_seconds([one.url for one in replicas], plan.prompt, WARM, plan.seed)
            if not rate:
                rate = plan.load * plan.replicas / service
                say(f"a prompt takes {service * 1e3:.0f} ms with all at work: {rate:.1f} requests a second")
            async with rig.routed(replicas, policy) as (address, front):
                asked = _core.fleet_requests(_scenario(plan, rig.sizes, rate, policy, 1.0, 1.0))
                peaks = Peaks(front)
                watch = asyncio.create_task(peaks.watch())
                seen = await play(address, asked, plan.prompt, name=lambda _, k: f"a{k}", seed=plan.seed)
                await asyncio.sleep(1.0)  # the last inventories
                watch.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watch
                runs.append(_run(rig, rate, policy, seen, peaks, front))
        say(f"{policy}: {runs[-1].real}")
    return rate, runs


def _run(rig: Rig, rate: float, policy: str, seen: list[Seen], peaks: Peaks, front: RouteFront) -> Run:
    plan, sizes = rig.plan, rig.sizes
    good = [one for one in seen if not one.code]
    if not good:
        raise SystemExit(f"{policy}: nothing was answered: {seen[0].code}")
    services = [one.service for one in good if one.service]
    service = fmean(services)
    # bytes in the router's metrics are of pages, as the pool counts them
    load = fmean(peaks.load_seconds.values()) * sizes.pages * sizes.page_bytes if peaks.load_seconds else 0.0
    cold = sum(one.tier == "cold" for one in good)
    real = Figures(
        cold_loads=cold,
        preloads=max(sum(peaks.page_ins.values()) - cold, 0),
        mib_max=max(peaks.bytes.values()) / (1 << 20),
        ttft_p50_s=rank([one.ttft for one in good], 0.5),
        ttft_p99_s=rank([one.ttft for one in good], 0.99),
        failed=len(seen) - len(good),
    )
    found = simulate_fleet(_scenario(plan, sizes, rate, policy, service, load, services))
    simulated = Figures(
        cold_loads=found.cold_loads,
        preloads=found.preloads,
        mib_max=max(found.kib_max) / 1024,
        ttft_p50_s=found.ttft_p50_us / 1e6,
        ttft_p99_s=found.ttft_p99_us / 1e6,
    )
    return Run(policy, real, simulated, service, fmean(one.way for one in good), load, moves_of(front))


def moves_of(front: RouteFront) -> int:
    """Homes that were moved so far."""
    return round(total(front, "lorad_router_moves_total"))


def total(front: RouteFront, name: str) -> float:
    """A counter over all its labels."""
    families = front.metrics.registry.collect()
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def _scenario(
    plan: Plan, sizes: Sizes, rate: float, policy: str, service_s: float, load_s: float, services: Sequence[float] = ()
) -> str:
    """The simulator's; `services`: a prompt's times as they were measured."""
    routing = policy
    if policy == "cost":
        routing = f"cost:{plan.away_loads}:{round(plan.rebalance_seconds * 1e6)}:{plan.moves_max}"
    return (
        f"replicas={plan.replicas} adapters={plan.adapters} requests={plan.requests} seed={plan.seed} "
        f"gap_us={round(1e6 / rate)} kib={sizes.kib} room={plan.room} load_us={round(load_s * 1e6)} "
        f"prefill_us={round(service_s * 1e6)} routing={routing} beside=1 prewarm=1"
        + (f" prefills_us={','.join(str(max(round(one * 1e6), 1)) for one in services)}" if services else "")
    )
