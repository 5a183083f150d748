#!/usr/bin/env python3
"""Real replicas behind `lorad route`: round robin beside lorad's router, the simulator beside both; then faults.

Each replica is a `lorad serve` of one thread on the embedded base; 40 adapters by Zipf's law; the bandwidth of page-ins
is capped so that an adapter takes 50 ms. Requests come when and for what the simulator draws, so it can be told the
same. It's told a prompt's and a load's time as they were measured in the run that it's beside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import uvloop
from lorad.demo.base import embedded_base
from rich.console import Console

import faults
import policies
from report import draw, fault_lines, table, verdict
from rig import Plan, Rig

console = Console(width=None if sys.stdout.isatty() else 150)


def say(line: str) -> None:
    """Progress, on stderr."""
    Console(stderr=True).print(line, highlight=False)


def main() -> int:
    """Runs what was asked for; 1 if a request was lost that could have been retried."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--only", choices=("policies", "faults"), help="one of the two; default: both")
    add("--replicas", type=int, default=4)
    add("--adapters", type=int, default=40)
    add("--rank", type=int, default=8)
    add("--room", type=int, default=16, help="adapters that fit on a replica; default %(default)s")
    add("--prompt", type=int, nargs=2, default=(16, 160), metavar=("LEAST", "MOST"), help="tokens; default 16 160")
    add("--requests", type=int, default=1000, help="of each policy; default %(default)s")
    add("--load", type=float, default=0.5, help="part of what the replicas can do; default %(default)s")
    add("--away-loads", type=int, default=2, help="as of lorad route; default %(default)s")
    add("--rebalance-seconds", type=float, default=2.0)
    add("--moves-max", type=int, default=8)
    add("--phase-seconds", type=float, default=30.0, help="of each phase of the faults; default %(default)s")
    add("--seed", type=int, default=1)
    add("--json", default="", metavar="FILE")
    add("--plot", default="", metavar="FILE.svg", help="of the faults")
    arguments = parser.parse_args()
    plan = Plan(
        replicas=arguments.replicas,
        adapters=arguments.adapters,
        rank=arguments.rank,
        room=arguments.room,
        prompt=tuple(arguments.prompt),
        requests=arguments.requests,
        load=arguments.load,
        away_loads=arguments.away_loads,
        rebalance_seconds=arguments.rebalance_seconds,
        moves_max=arguments.moves_max,
        seed=arguments.seed,
    )
    found: dict[str, object] = {"plan": asdict(plan)}
    lost = 0
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rig = Rig(Path(folder), embedded_base(), plan)
        if arguments.only != "faults":
            rate, runs = runner.run(policies.measure(rig, say))
            console.print(table(runs))
            for line in verdict(runs):
                console.print(line, highlight=False)
            found |= {"rate": rate, "policies": [run.as_dict() for run in runs]}
        if arguments.only != "policies":
            timeline = runner.run(faults.measure(rig, arguments.phase_seconds, say))
            for line in fault_lines(timeline):
                console.print(line, highlight=False)
            lost = sum(bool(one.code) and not one.began for one in timeline.seen)
            found["faults"] = {
                "phases": [one._asdict() for one in timeline.phases],
                "looks": [one._asdict() for one in timeline.looks],
                "seen": [one._asdict() for one in timeline.seen],
                "retries": timeline.retries,
            }
            if arguments.plot:
                draw(timeline, Path(arguments.plot))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1))
    return int(lost > 0)


if __name__ == "__main__":
    raise SystemExit(main())
