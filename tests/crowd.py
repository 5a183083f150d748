"""A crowd: many connections to a real server with tenants, half of them slow or dropped at random, beside a tenant that
behaves.

Nobody gets anything but an answer or a clean refusal, the tenants keep their shares, the gaps between the well-behaved
one's tokens stay what they were, and when the crowd has gone nothing of it is left.

    make crowd                                         # 2,000 connections, 10 minutes
    make crowd ARGS="--connections 200 --minutes 1"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from lorad import open_files
from lorad.bench.figures import rank
from served_process import Serving
from storm import _rss

ROWS = 32
FEW = 24
"""Connections of the tenant that behaves: more than its share of the rows."""
PROMPT, OUTPUT = 16, 16
BEHAVES = 0.5
"""Of the crowd, so many; the others do one of these, anew for each request."""
MISDEEDS = ("leaves at once", "leaves in the answer", "never ends its head", "sends slowly", "reads slowly")
REFUSALS = {429: ("queue_full", "tenant_queue_full"), 503: ("draining",)}
console = Console(width=None if sys.stdout.isatty() else 130)


@dataclass
class Minute:
    """What was seen in one."""

    gaps_ms: list[float] = field(default_factory=list)
    """Between tokens of the tenant that behaves."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Made by the server, by tenant."""
    connections: int = 0
    mib: int = 0
    files: int = 0

    @property
    def share(self) -> float:
        """Of the tokens, that of the tenant that behaves."""
        return self.tokens.get("few", 0) / max(sum(self.tokens.values()), 1)


class Crowd:
    """Against one server, until its time is over."""

    def __init__(self, url: str, keys: dict[str, str], models: Sequence[str], ends: float, seed: int) -> None:
        self._host, port = re.fullmatch(r"http://([^:]+):(\d+)", url).groups()  # type: ignore[union-attr]
        self._port, self._url, self._keys, self._models = int(port), url, keys, models
        self._ends, self._seed = ends, seed
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.gaps_ms: list[float] = []
        self.connections = 0

    async def run(self, connections: int) -> None:
        """Everybody."""
        few = (self._behave("few", number) for number in range(FEW))
        many = (
            self._behave("many", number) if number < connections * BEHAVES else self._misbehave(number)
            for number in range(connections)
        )
        await asyncio.gather(*few, *many)

    def _body(self, dice: random.Random, *, stream: bool) -> dict[str, Any]:
        return {
            "model": dice.choice(self._models),
            "prompt": [dice.randrange(200) for _ in range(PROMPT)],
            "max_tokens": OUTPUT,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }

    # those who behave

    async def _behave(self, tenant: str, number: int) -> None:
        dice = random.Random(f"{self._seed} {tenant} {number}")
        headers = {"Authorization": f"Bearer {self._keys[tenant]}"}
        connector = aiohttp.TCPConnector(limit=1)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(self._url, connector=connector, headers=headers, timeout=timeout) as session:
            self.connections += 1
            while time.monotonic() < self._ends:
                try:
                    await self._answer(session, tenant, self._body(dice, stream=tenant == "few" or dice.random() < 0.5))
                except (aiohttp.ClientError, ValueError) as error:
                    self.wrong.append(f"{tenant}: {type(error).__name__}: {error}")
                    await asyncio.sleep(1)
            self.connections -= 1

    async def _answer(self, session: aiohttp.ClientSession, tenant: str, body: dict[str, Any]) -> None:
        async with session.post("/v1/completions", json=body) as reply:
            if reply.status != 200:
                code = (await reply.json())["error"]["code"]
                if code not in REFUSALS.get(reply.status, ()):
                    raise ValueError(f"{reply.status} {code}")
                self.counts[code] += 1
                await asyncio.sleep(1)
                return
            if not body["stream"]:
                choice = (await reply.json())["choices"][0]
                if choice["finish_reason"] != "length":
                    raise ValueError(str(choice))
            else:
                await self._read(reply, is_timed=tenant == "few")
        self.counts[f"answers of {tenant}"] += 1

    async def _read(self, reply: aiohttp.ClientResponse, *, is_timed: bool) -> None:
        reason, last = None, 0.0
        async for line in reply.content:
            if not line.startswith(b"data: {"):
                continue
            event, now = json.loads(line[6:]), time.perf_counter()
            if "error" in event:
                raise ValueError(str(event["error"]))
            reason = event["choices"][0]["finish_reason"] or reason
            if is_timed and last:
                self.gaps_ms.append((now - last) * 1e3)
            last = now
        if reason != "length":
            raise ValueError(f"a stream that ended by {reason}")

    # those who don't

    async def _misbehave(self, number: int) -> None:
        dice = random.Random(f"{self._seed} misbehaves {number}")
        while time.monotonic() < self._ends:
            misdeed = dice.choice(MISDEEDS)
            self.counts[misdeed] += 1
            try:
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 12)
            except OSError as error:
                self.wrong.append(f"no connection: {error}")
                await asyncio.sleep(1)
                continue
            self.connections += 1
            try:
                async with asyncio.timeout(max(0.0, self._ends - time.monotonic())):
                    await self._do(misdeed, dice, reader, writer)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                pass  # cut off, by the server or by the end of time
            finally:
                self.connections -= 1
                writer.transport.abort()

    async def _do(
        self, misdeed: str, dice: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        data = json.dumps(self._body(dice, stream=True)).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._keys['many']}\r\n"
        request = f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        if misdeed == "never ends its head":
            writer.write(request[: dice.randrange(len(head))])
            await asyncio.sleep(dice.uniform(0, 30))
            return
        if misdeed == "sends slowly":
            for begin in range(0, len(request), 32):
                writer.write(request[begin : begin + 32])
                await asyncio.sleep(dice.uniform(0, 0.3))
        else:
            writer.write(request)
            await writer.drain()
        if misdeed == "leaves at once":
            await asyncio.sleep(dice.uniform(0, 3))
            return
        events = dice.randint(1, OUTPUT - 1) if misdeed == "leaves in the answer" else OUTPUT
        async for line in reader:
            if line.startswith(b"data: {"):
                events -= 1
                if misdeed == "reads slowly":
                    await asyncio.sleep(dice.uniform(0, 2))
            if events <= 0 or line.startswith(b"data: [DONE]"):
                return


class Watch:
    """What the server says of itself, minute by minute."""

    def __init__(self, server: Serving, key: str, crowd: Crowd) -> None:
        self._server, self._key, self._crowd = server, key, crowd
        self.minutes: list[Minute] = []
        self._tokens: dict[str, int] = {}

    async def run(self, ends: float, every: float) -> None:
        """Notes one after the other."""
        while time.monotonic() + every <= ends:
            await asyncio.sleep(every)
            minute = Minute(self._crowd.gaps_ms, connections=self._crowd.connections)
            self._crowd.gaps_ms = []
            tokens = await self._made()
            minute.tokens = {tenant: made - self._tokens.get(tenant, 0) for tenant, made in tokens.items()}
            self._tokens = tokens
            minute.mib, minute.files = self.holds()
            self.minutes.append(minute)
            console.print(self._row(minute), highlight=False)

    def _row(self, minute: Minute) -> str:
        return (
            f"{len(self.minutes)}: {minute.connections} connections, {sum(minute.tokens.values())} tokens, "
            f"few's share {minute.share:.3f}, its gaps p50 {rank(minute.gaps_ms, 0.5):.0f} ms, "
            f"p99 {rank(minute.gaps_ms, 0.99):.0f} ms; {minute.mib} MiB, {minute.files} files"
        )

    async def _made(self) -> dict[str, int]:
        _, answer = await self.ask("/v1/tenants")
        return {one["name"]: one["since_start"]["generation_tokens"] for one in answer["data"]}

    async def ask(self, path: str) -> tuple[int, Any]:
        """As an operator."""
        headers = {"Authorization": f"Bearer {self._key}"}
        async with aiohttp.ClientSession(self._server.url) as session, session.get(path, headers=headers) as reply:
            return reply.status, await (reply.json() if "json" in reply.content_type else reply.text())

    def holds(self) -> tuple[int, int]:
        """MiB and open files of the server's processes."""
        process = psutil.Process(self._server.process.pid)
        pids = [process.pid, *(child.pid for child in process.children(recursive=True))]
        files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        return sum(_rss(pid) for pid in pids) >> 20, files

    async def left(self) -> dict[str, int]:
        """Of the crowd, once it has gone: the least of some seconds, as the server hears of a hang-up later."""
        seen: list[dict[str, int]] = []
        for _ in range(50):
            _, metrics = await self.ask("/metrics")
            found = re.findall(r"^vllm:num_requests_(running|waiting)\{.*\} (\S+)$", metrics, re.MULTILINE)
            seen.append({kind: int(float(value)) for kind, value in found} | {"files": self.holds()[1]})
            if not any(seen[-1][kind] for kind in ("running", "waiting")) and len(seen) > 20:
                break
            await asyncio.sleep(0.2)
        return {kind: min(one[kind] for one in seen) for kind in seen[-1]}


def _lorad(*words: str, state: Path) -> str:
    command = [sys.executable, "-m", "lorad", *words, "--state-file", str(state)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def gather(
    model: str, adapters: dict[str, Path], folder: Path, connections: int, seconds: float, *, every: float, seed: int
) -> tuple[Crowd, Watch, dict[str, int], dict[str, int]]:
    """A crowd of so many; what it saw, and what the server held before and after it."""
    open_files.allow_all()
    state, keys = folder / "state.sqlite", {}
    for tenant in ("few", "many"):
        _lorad("tenants", "set", tenant, "--adapters", "*", state=state)
        keys[tenant] = json.loads(_lorad("keys", "add", tenant, "--json", state=state))[0]["key"]
    operator = json.loads(_lorad("keys", "add", "--operator", "--json", state=state))[0]["key"]
    options = ["--served-model-name", "base", "--tenants", "--state-file", str(state), "--max-num-seqs", str(ROWS)]
    options += ["--lora-modules", *(f"{name}={path}" for name, path in adapters.items())]
    server = Serving(model, *options)
    try:
        ends = time.monotonic() + seconds
        crowd = Crowd(server.url, keys, ["base", *adapters], ends, seed)
        watch = Watch(server, operator, crowd)

        async def everybody() -> tuple[dict[str, int], dict[str, int]]:
            before = await watch.left()
            await asyncio.gather(crowd.run(connections), watch.run(ends, every))
            return before, await watch.left()

        before, after = asyncio.run(everybody())
    finally:
        code = server.stop()
    if code:
        crowd.wrong.append(f"the server ended with {code}")
    return crowd, watch, before, after


def main() -> int:
    """Gathers one, and tells what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tenants = Path(__file__).parents[1] / "py/lorad/demo/tenants"
    adapters = {path.parent.name: path.parent for path in sorted(tenants.glob("*/tenant.json"))}
    with tempfile.TemporaryDirectory() as folder:
        crowd, _, before, after = gather(
            "smollm2",
            adapters,
            Path(folder),
            options.connections,
            options.minutes * 60,
            every=60 if options.minutes >= 4 else options.minutes * 15,
            seed=options.seed,
        )
    table = Table("what", "how often", title=f"{options.connections:,} connections, {options.minutes:g} minutes")
    for what, count in sorted(crowd.counts.items()):
        table.add_row(what, f"{count:,}")
    console.print(table)
    console.print(f"before: {before}; after: {after}; {len(crowd.wrong)} wrong")
    for line in crowd.wrong[:20]:
        console.print(f"  {line}", markup=False)
    return 1 if crowd.wrong or after["running"] or after["waiting"] or after["files"] > before["files"] + 2 else 0


if __name__ == "__main__":
    sys.exit(main())
