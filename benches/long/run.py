#!/usr/bin/env python3
"""A server under mixed traffic for as long as asked: what it makes and what it holds, minute by minute.

So many clients ask one thing after the other: streams and whole answers, completions and chats, short prompts and long
ones, beginnings that others had before, greedy and sampled, the base and adapters of several ranks by Zipf's law, of
which the pool holds a part; one in twenty hangs up in mid-stream. Every answer is checked for its status and length.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
from lorad.bench.adapters import write_random
from lorad.bench.served import served
from lorad.config import EngineConfig
from lorad.models.open import open_model
from rich.console import Console

from clients import Asker, Counts, Load
from report import Minute, draw, print_minutes, resident_bytes, trend

RANKS = (8, 8, 16, 16, 16, 32, 64)
console = Console(stderr=True)


async def watch(load: Load, minutes: int, on_minute: Callable[[Minute], None]) -> None:
    """Takes a reading at the end of each minute."""
    last = Counts()
    for number in range(1, minutes + 1):
        await asyncio.sleep(max(0.0, load.began + number * 60 - time.perf_counter()))
        now = load.counts.copy()
        on_minute(Minute(number, now.minus(last), resident_bytes(os.getpid())))
        last = now


async def run(load: Load, minutes: int, streams: int, seed: int) -> list[Minute]:
    """All clients and the watch."""
    found: list[Minute] = []

    def on_minute(minute: Minute) -> None:
        found.append(minute)
        console.print(f"{time.strftime('%H:%M:%S')}  {minute}", highlight=False)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch(load, minutes, on_minute))
        for number in range(streams):
            group.create_task(Asker(load, seed * 1000 + number).run())
    return found


def main() -> None:
    """Reads the options, runs, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=40)
    parser.add_argument("--streams", type=int, default=24, help="clients that ask at once")
    parser.add_argument("--adapters", type=int, default=100)
    parser.add_argument("--memory-mib", type=int, default=768, help="the pool, for adapters and KV")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="where to write the minutes as data")
    parser.add_argument("--plot", type=Path, default=None, help="where to draw them")
    options = parser.parse_args()
    config = EngineConfig(model="smollm2", kv_cache_memory_bytes=options.memory_mib << 20)
    with tempfile.TemporaryDirectory(prefix="long-") as folder:
        console.print(f"writing {options.adapters} adapters")
        weights, paths = open_model(config.model), {}
        for number in range(options.adapters):
            path = Path(folder) / f"tenant-{number}"
            paths[path.name] = write_random(path, weights.config, RANKS[number % len(RANKS)], number)
        vocab = weights.config.vocab
        del weights
        console.print("starting a server")
        with served(config, paths, Path(folder) / "server.log") as address:
            load = Load(address, list(paths), vocab, time.perf_counter() + options.minutes * 60)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                minutes = runner.run(run(load, options.minutes, options.streams, options.seed))
    print_minutes(minutes, Console())
    said = trend(minutes)
    print(said)
    if options.json:
        data = {"options": {name: str(value) for name, value in vars(options).items()}, "trend": said}
        found = [minute.as_json() for minute in minutes]
        options.json.write_text(json.dumps(data | {"minutes": found}, indent=1) + "\n")
    if options.plot:
        draw(minutes, options.plot)
    for failure in load.failures[:5]:
        console.print(failure, style="red", markup=False)
    sys.exit(1 if load.failures else 0)


if __name__ == "__main__":
    main()
