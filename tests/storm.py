"""A storm: random loads, reloads, unloads, pins, prewarmings and hung up clients, beside traffic, on a real server.

Every answer must be the text of the generation that it reports, which must be one that its name could have; what was
acknowledged must be so for the next request, and after a kill -9 too; in the end nothing is left.

    make storm ARGS="--minutes 30"
    make storm ARGS="--kills 50"
    make storm ARGS="--cycles 10000"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from storm_world import NAMES, PROMPTS, TOKENS, VERSIONS, World, make_world

KEY = "storm"
OPERATORS, CLIENTS = 6, 10
LEAVES = 0.15
"""Of the clients, so many hang up."""
Wanted = str | None
"""A generation, or nothing: the name is unknown."""


class Storm:
    """A server process, those who change it and those who ask it."""

    def __init__(self, world: World, data: Path, seed: int) -> None:
        self.world = world
        self.data = data
        self.seed = seed
        self.process: asyncio.subprocess.Process | None = None
        self.url = ""
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.may: list[set[Wanted]] = [{None} for _ in range(NAMES)]
        """What each name may be now: one thing, or two while something is asked for."""
        self.ends = 0.0

    # the server

    async def start(self) -> float:
        """Starts the process; gives the seconds until it served."""
        began = time.perf_counter()
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lorad", "serve", str(self.world.base), "--port", "0", "--deterministic"),
            *("--served-model-name", "base", "--control-key", KEY, "--adapter-roots", str(self.world.root)),
            *("--kv-cache-memory-bytes", str(24 << 20), "--max-pinned-bytes", str(6 << 20)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "LORAD_DATA_DIR": str(self.data)},
        )
        assert self.process.stdout is not None
        lines = []
        async for line in self.process.stdout:
            lines.append(line.decode())
            if found := re.search(r"serving base on (http://\S+)", lines[-1]):
                self.url = found[1]
                asyncio.create_task(self._read(self.process.stdout))  # noqa: RUF006
                return time.perf_counter() - began
        raise AssertionError("the server did not start:\n" + "".join(lines))

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        async for line in stdout:
            self.counts["lines of log"] += 1
            sys.stderr.write(line.decode())

    async def stop(self, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        await self.process.wait()

    async def ask(self, session: aiohttp.ClientSession, method: str, path: str, **fields: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with session.request(method, self.url + path, json=fields or None, headers=headers) as response:
            body = await response.read()
            return response.status, json.loads(body) if body else None

    # those who change it

    async def operate(self, number: int, rounds: int) -> None:
        """Has some names of its own, and changes one after the other. Ends with the server or the time."""
        dice = random.Random(f"{self.seed} operator {number} {rounds}")
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < self.ends:
                name = dice.randrange(number, NAMES, OPERATORS)
                try:
                    await self._change(session, dice, name)
                    if len(self.may[name]) == 1:
                        await self._check_now(session, dice, name)
                except aiohttp.ClientError:
                    return  # it was killed

    async def _change(self, session: aiohttp.ClientSession, dice: random.Random, name: int) -> None:
        path = f"/v1/lora_adapters/{self.world.names[name]}"
        kind = dice.choices(["load", "unload", "pin", "prewarm"], [6, 3, 1, 1])[0]
        self.counts[kind] += 1
        if kind == "load":
            version = dice.randrange(VERSIONS)
            wait = dice.choice([0, 30, 30])
            self.may[name] |= {self.world.generation(name, version)}
            fields = {"source": self.world.source(name, version), "reload": True, "pinned": dice.random() < 0.1}
            status, answer = await self.ask(session, "PUT", path, wait_seconds=wait, **fields)
            self._expect(status in (200, 202), name, kind, status, answer)
            if status == 202:
                return
            self.may[name] = {self.world.generation(name, version)}
        elif kind == "unload":
            query = dice.choice(["", "?within_seconds=0", "?within_seconds=0.1", "?wait_seconds=30"])
            was = self.may[name]
            self.may[name] = was | {None}
            status, answer = await self.ask(session, "DELETE", path + query)
            self._expect(status in (200, 202) or (status == 404 and None in was), name, kind, status, answer)
            self.may[name] = {None}
        elif kind == "pin":
            status, answer = await self.ask(session, "PATCH", path, pinned=dice.random() < 0.3)
            self._expect(status in (200, 404, 409, 429), name, kind, status, answer)
        else:
            status, answer = await self.ask(session, "POST", "/v1/lora_prewarm", names=[self.world.names[name]])
            self._expect(status in (200, 202, 404, 409), name, kind, status, answer)

    async def _check_now(self, session: aiohttp.ClientSession, dice: random.Random, name: int) -> None:
        """What was acknowledged is so for the very next request."""
        (wanted,) = self.may[name]
        status, answer = await self._request(session, dice, self.world.names[name], name)
        found = None if status == 404 else answer.get("system_fingerprint") if status == 200 else f"status {status}"
        self._expect(found == wanted, name, f"wanted {wanted}", found)

    async def settle(self, session: aiohttp.ClientSession, *, wait: bool = True) -> None:
        """Waits until nothing is under way, unless the requests are to wait for it, and checks each name."""
        while wait:
            _, answer = await self.ask(session, "GET", "/v1/operations")
            running = [operation for operation in answer["data"] if operation["state"] == "running"]
            if not running:
                break
            await asyncio.sleep(0.05)
        dice = random.Random(0)
        for name in range(NAMES):
            status, answer = await self._request(session, dice, self.world.names[name], name)
            found = None if status == 404 else answer.get("system_fingerprint") if status == 200 else f"status {status}"
            self._expect(found in self.may[name], name, f"wanted one of {self.may[name]}", found)
            self.may[name] = {found}

    # those who ask

    async def traffic(self, number: int, rounds: int) -> None:
        """One client: a request after the other, under any name."""
        dice = random.Random(f"{self.seed} client {number} {rounds}")
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < self.ends:
                name = dice.randrange(NAMES) if dice.random() < 0.9 else None
                asked = self._request(session, dice, "base" if name is None else self.world.names[name], name)
                try:
                    if dice.random() < LEAVES:
                        await asyncio.wait_for(asked, dice.random() * 0.1)
                    else:
                        await asked
                except TimeoutError:
                    self.counts["left"] += 1
                except aiohttp.ClientError:
                    return

    async def _request(
        self, session: aiohttp.ClientSession, dice: random.Random, model: str, name: int | None
    ) -> tuple[int, Any]:
        prompt = dice.randrange(PROMPTS)
        fields: dict[str, Any] = {"model": model, "prompt": self.world.prompts[prompt], "max_tokens": TOKENS}
        fields |= {"temperature": 0, "ignore_eos": True, "n": dice.choice([1, 1, 1, 3]), "stream": dice.random() < 0.3}
        async with session.post(self.url + "/v1/completions", json=fields) as response:
            body = await response.read()
            status = response.status
        if status != 200:
            answer = json.loads(body)
            code = answer["error"]["code"]
            fine = (status, code) in ((404, "model_not_found"), (503, "adapter_unloaded"))
            self._expect(fine and name is not None, name, status, answer)
            self.counts[code] += 1
            return status, answer
        chunks = _chunks(body) if fields["stream"] else [json.loads(body)]
        if "error" in chunks[-1]:
            self._expect(chunks[-1]["error"]["code"] == "adapter_unloaded", name, chunks[-1])
            self.counts["adapter_unloaded"] += 1
            return 503, chunks[-1]
        generation = chunks[0]["system_fingerprint"]
        allowed = (
            {self.world.base_digest}
            if name is None
            else {self.world.generation(name, version) for version in range(VERSIONS)}
        )
        self._expect(generation in allowed, name, "reports", generation)
        texts: dict[int, str] = {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        right = self.world.texts.get((generation, prompt))
        self._expect(set(texts.values()) == {right}, name, generation, prompt, texts, "wanted", right)
        self.counts["answers"] += 1
        return status, chunks[0]

    def _expect(self, holds: bool, *about: object) -> None:
        if not holds:
            self.wrong.append(" ".join(map(str, about)))

    # together

    async def blow(self, seconds: float, rounds: int = 0) -> None:
        """Everybody, for so long."""
        self.ends = time.monotonic() + seconds
        operators = (self.operate(number, rounds) for number in range(OPERATORS))
        await asyncio.gather(*operators, *(self.traffic(number, rounds) for number in range(CLIENTS)))


def _chunks(body: bytes) -> list[Any]:
    events = [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event]
    return [json.loads(event) for event in events if event != "[DONE]"]


async def clear(storm: Storm) -> dict[str, int]:
    """Unloads all and tells what is left: of pages, files, rows, threads, memory."""
    async with aiohttp.ClientSession() as session:
        await storm.settle(session)
        for name in range(NAMES):
            await storm.ask(session, "DELETE", f"/v1/lora_adapters/{storm.world.names[name]}?wait_seconds=30")
            storm.may[name] = {None}
        await storm.settle(session)
        async with session.get(storm.url + "/metrics") as response:
            metrics = await response.text()
        _, adapters = await storm.ask(session, "GET", "/v1/lora_adapters")
    assert storm.process is not None
    server = psutil.Process(storm.process.pid)
    pids = [server.pid, *(child.pid for child in server.children(recursive=True))]
    files, threads = await _settled(pids)
    pages = re.findall(r'^lorad:pages\{.*owner="adapters".*\} (\S+)$', metrics, re.MULTILINE)
    return {
        "adapters": len(adapters["data"]),
        "pages of adapters": int(float(pages[0])) if pages else -1,
        "open files": files,
        "threads": threads,
        "MiB": sum(_rss(pid) for pid in pids) >> 20,
        "series of metrics": metrics.count("\n"),
    }


async def _settled(pids: list[int]) -> tuple[int, int]:
    """The fewest open files and threads of a second: the server closes a client's connection when it hears of it,
    which may be after the client is gone."""
    seen = []
    for _ in range(20):
        files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        seen.append((files, sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids)))
        await asyncio.sleep(0.05)
    return min(files for files, _ in seen), min(threads for _, threads in seen)


def _rss(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def storm_for(
    world: World, data: Path, seconds: float, seed: int
) -> tuple[Storm, dict[str, int], dict[str, int]]:
    """A storm of so long; what is left after a short one and after all of it."""
    storm = Storm(world, data, seed)
    await storm.start()
    try:
        await storm.blow(min(seconds / 4, 30))
        before = await clear(storm)
        await storm.blow(seconds, rounds=1)
        after = await clear(storm)
    finally:
        await storm.stop()
    return storm, before, after


async def kills(world: World, data: Path, count: int, seed: int) -> Storm:
    """A storm that is cut by kill -9 at random moments; after each the asked-for state must be back."""
    storm, dice = Storm(world, data, seed), random.Random(seed)
    for number in range(count):
        seconds = await storm.start()
        async with aiohttp.ClientSession() as session:
            await storm.settle(session, wait=number % 2 == 0)
        blowing = asyncio.create_task(storm.blow(60, rounds=number))
        await asyncio.sleep(dice.random() * 3)
        await storm.stop(signal.SIGKILL)
        await blowing
        storm.counts["kills"] += 1
        if sys.stdout.isatty() or number % 10 == 9:
            sys.stdout.write(
                f"kill {number + 1} of {count}; the last start took {seconds:.1f} s; {dict(storm.counts)}\n"
            )
    await storm.start()
    try:
        await clear(storm)
    finally:
        await storm.stop()
    return storm


async def cycles(world: World, data: Path, count: int) -> tuple[Storm, list[dict[str, int]]]:
    """So many loads and unloads of one name after the other; what is left after a twentieth of them, and so on."""
    storm, left = Storm(world, data, 0), []
    await storm.start()
    try:
        async with aiohttp.ClientSession() as session:
            for number in range(count):
                path = f"/v1/lora_adapters/cycle-{number}"
                source = world.source(number % NAMES, number % VERSIONS)
                status, answer = await storm.ask(session, "PUT", path, source=source, wait_seconds=30)
                storm._expect(status == 200, number, answer)
                status, answer = await storm.ask(session, "DELETE", path + "?wait_seconds=30")
                storm._expect(status == 200, number, answer)
                if (number + 1) % max(count // 20, 1) == 0:
                    left.append(await clear(storm))
                    sys.stdout.write(f"{number + 1} cycles: {left[-1]}\n")
    finally:
        await storm.stop()
    return storm, left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--cycles", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    from lorad.demo.base import embedded_base

    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(embedded_base()), Path(folder), seed=arguments.seed)
        data = Path(folder) / "data"
        wrong: list[str] = []
        if arguments.minutes:
            storm, before, after = asyncio.run(storm_for(world, data, arguments.minutes * 60, arguments.seed))
            sys.stdout.write(f"{dict(storm.counts)}\nleft after a short storm: {before}\nafter all of it: {after}\n")
            wrong += storm.wrong
        if arguments.kills:
            storm = asyncio.run(kills(world, data, arguments.kills, arguments.seed))
            sys.stdout.write(f"{dict(storm.counts)}\n")
            wrong += storm.wrong
        if arguments.cycles:
            storm, _ = asyncio.run(cycles(world, data, arguments.cycles))
            wrong += storm.wrong
    sys.stdout.write(f"{len(wrong)} wrong\n" + "".join(f"  {line}\n" for line in wrong[:20]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
