"""C10 on the real server: one tenant asks for ten times its share, and what a light one notices of it.

python benches/floods/run.py [--seconds 180] [--repeats 2] [--reserved 4 8] [--json FILE]

Two tenants of the same weight, keys of their own. The light one's requests come by Poisson's law, an eighth of what the
machine can do; the other always has ten times its share of the rows asked for. By turns: fair shares with so many
rows reserved, by arrival, and the light one `alone` on half of the rows and of the tokens of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from lorad.bench.adapters import copy_changed, write_random
from lorad.bench.figures import rank
from lorad.bench.lengths import LogNormal, Uniform
from lorad.config import EngineConfig, ServerConfig
from lorad.demo.base import embedded_base
from lorad.models.open import open_model
from lorad.server.run import Server

ROWS, TOKENS, RESERVED = 32, 256, 4
ADAPTERS = 8
"""Of each tenant."""
LIGHT_RATE = 1.0
"""Requests a second, about an eighth of what two cores can do."""
FLOOD = 10 * ROWS // 2
"""Requests that the other tenant has in the server at any time."""
SETTLES_S = 10.0
"""After which what is seen counts."""
PROMPT, OUTPUT = LogNormal(128, 500), Uniform(16, 96)
PROMPT_MAX = 400
console = Console(width=None if sys.stdout.isatty() else 130)


@dataclass
class Seen:
    """Of one run."""

    ttft_s: list[float] = field(default_factory=list)
    """The light tenant's."""
    tokens: dict[str, int] = field(default_factory=lambda: {"light": 0, "flood": 0})
    """Made while it counted."""
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second of both."""
        return sum(self.tokens.values()) / self.seconds


class Flood:
    """One run against one server."""

    def __init__(self, url: str, keys: dict[str, str], seconds: float, seed: int) -> None:
        self._url, self._keys, self._seed = url, keys, seed
        self._begin = time.perf_counter() + SETTLES_S
        self._end = self._begin + seconds
        self.seen = Seen(seconds=seconds)

    async def run(self, *, floods: bool) -> Seen:
        """Both tenants, or the light one alone."""
        async with aiohttp.ClientSession(self._url, connector=aiohttp.TCPConnector(limit=0)) as session:
            flood = [asyncio.create_task(self._on_and_on(session, one)) for one in range(FLOOD if floods else 0)]
            await self._light(session)
            for task in flood:
                task.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
        return self.seen

    async def _on_and_on(self, session: aiohttp.ClientSession, number: int) -> None:
        dice = random.Random(f"flood {self._seed} {number}")
        while True:
            await self._ask(session, "flood", dice)

    async def _light(self, session: aiohttp.ClientSession) -> None:
        dice, at, asked = random.Random(f"light {self._seed}"), time.perf_counter(), []
        while (at := at + dice.expovariate(LIGHT_RATE)) < self._end:
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            asked.append(asyncio.create_task(self._ask(session, "light", random.Random(dice.random()))))
        await asyncio.gather(*asked)

    async def _ask(self, session: aiohttp.ClientSession, tenant: str, dice: random.Random) -> None:
        body = {
            "model": f"{tenant}/{dice.randrange(ADAPTERS)}",
            "prompt": [dice.randrange(1000, 40000) for _ in range(min(PROMPT.draw(dice), PROMPT_MAX))],
            "max_tokens": OUTPUT.draw(dice),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"Authorization": f"Bearer {self._keys[tenant]}"}
        began, first = time.perf_counter(), 0.0
        async with session.post("/v1/completions", json=body, headers=headers) as reply:
            if reply.status != 200:
                raise RuntimeError(await reply.text())
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    now = time.perf_counter()
                    first = first or now
                    self.seen.tokens[tenant] += self._begin <= now < self._end
        if tenant == "light" and began >= self._begin:
            self.seen.ttft_s.append(first - began)


async def measure(side: str, model: Path, adapters: dict[str, Path], folder: Path, seconds: float, seed: int) -> Seen:
    """A server of its own for each run, so that none finds what another left."""
    state = folder / f"{side}-{seed}.sqlite"
    keys = {}
    for tenant in ("light", "flood"):
        _lorad("tenants", "set", tenant, "--adapters", f"{tenant}/*", state=state)
        keys[tenant] = json.loads(_lorad("keys", "add", tenant, "--json", state=state))[0]["key"]
    half = 2 if side == "alone" else 1
    engine = EngineConfig(
        model=str(model),
        max_num_seqs=ROWS // half,
        max_num_batched_tokens=TOKENS // half,
        scheduling_policy="arrival" if side == "arrival" else "fair",
        reserved_seqs=int(side.removeprefix("fair ")) if side.startswith("fair") else 0,
        enable_prefix_caching=False,
    )
    modules = [f"{name}={path}" for name, path in adapters.items()]
    server = Server(
        engine,
        ServerConfig(port=0, served_model_name="base", lora_modules=modules, tenants=True, state_file=str(state)),
    )
    url = await server.start()
    try:
        return await Flood(url, keys, seconds, seed).run(floods=side != "alone")
    finally:
        await server.stop()


def _lorad(*words: str, state: Path) -> str:
    command = [sys.executable, "-m", "lorad", *words, "--state-file", str(state)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def show(found: dict[str, list[Seen]]) -> None:
    """What was seen beside what is to be reached."""
    table = Table(
        "", "light: requests", "TTFT p50, s", "p99, s", "tok/s of both", "light's tok/s", title="C10: a flood"
    )
    pooled = {side: [time for run in runs for time in run.ttft_s] for side, runs in found.items()}
    for side, runs in found.items():
        times = pooled[side]
        table.add_row(
            side,
            str(len(times)),
            f"{rank(times, 0.5):.3f}",
            f"{rank(times, 0.99):.3f}",
            f"{median(run.rate for run in runs):.0f}",
            f"{median(run.tokens['light'] / run.seconds for run in runs):.0f}",
        )
    console.print(table)
    for side in (side for side in found if side.startswith("fair")):
        late = rank(pooled[side], 0.99) / rank(pooled["alone"], 0.99)
        kept = median(a.rate / b.rate for a, b in zip(found[side], found["arrival"], strict=True))
        console.print(
            f"{side} reserved: light's p99 ÷ alone {late:.2f} (to reach: ≤ 1.5), tok/s ÷ by arrival {kept:.3f} (≥ 0.97)"
        )


def main() -> None:
    """Reads the options, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="of each run")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--reserved", type=int, nargs="+", default=[RESERVED], help="rows, of 32, for light tenants")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sides = ["alone", "arrival", *(f"fair {rows}" for rows in options.reserved)]
    model, found = Path(embedded_base()), {side: list[Seen]() for side in sides}
    with tempfile.TemporaryDirectory(prefix="floods-") as name:
        folder = Path(name)
        first = write_random(folder / "first", open_model(model).config, 16, 0)
        adapters = {
            f"{tenant}/{number}": copy_changed(first, folder / f"{tenant}{number}", 1 + number + 100 * one)
            for one, tenant in enumerate(("light", "flood"))
            for number in range(ADAPTERS)
        }
        for repeat in range(options.repeats):
            for side in sides if repeat % 2 else reversed(sides):
                seen = asyncio.run(measure(side, model, adapters, folder, options.seconds, repeat))
                found[side].append(seen)
                p99 = rank(seen.ttft_s, 0.99)
                console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {side}: p99 {p99:.3f} s, {seen.rate:.0f} tok/s")
    show(found)
    if options.json:
        told: dict[str, Any] = {side: [vars(run) for run in runs] for side, runs in found.items()}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
