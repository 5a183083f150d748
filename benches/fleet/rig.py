"""Replicas to measure with: `lorad serve` of one thread each with the same adapters, and a router in this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from lorad.bench.adapters import copy_changed, write_random
from lorad.bench.served import READY
from lorad.config import EngineConfig, ServerConfig, as_flags, without_options
from lorad.engine.child import python_path
from lorad.engine.engine import Engine
from lorad.fleet.app import RouteFront
from lorad.fleet.config import RouteConfig
from lorad.fleet.run import RouteServer

KEY = "bench"
LOAD_SECONDS = 0.05
"""Of an adapter, by the cap on page-ins."""
START_SECONDS = 300.0


@dataclass(frozen=True)
class Sizes:
    """What an adapter takes, as an engine says."""

    pages: int
    page_bytes: int

    @property
    def kib(self) -> int:
        """Of its pages."""
        return self.pages * self.page_bytes >> 10


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    replicas: int
    adapters: int
    rank: int
    room: int
    """Adapters that a replica has room for beside a prompt."""
    prompt: tuple[int, int]
    """Tokens, all numbers between these alike. A replica serves one after the other."""
    requests: int
    load: float
    """Part of what the replicas can do."""
    away_loads: int
    rebalance_seconds: float
    moves_max: int
    seed: int


def write_adapters(folder: Path, model: Path, plan: Plan) -> tuple[dict[str, Path], Sizes]:
    """Adapters of one size and other contents, and what one takes."""
    engine = Engine(str(model), threads=1, max_num_seqs=1)
    try:
        first = write_random(folder / "a0", engine.weights.config, plan.rank, plan.seed)
        info = engine.load_adapter("a0", str(first))
        sizes = Sizes(info.pages, engine.worker.geometry.page_bytes)
    finally:
        engine.close()
    made = {"a0": first}
    for number in range(1, plan.adapters):
        made[f"a{number}"] = copy_changed(first, folder / f"a{number}", number)
    return made, sizes


class Replica:
    """A server's process."""

    def __init__(self, number: int, folder: Path, model: Path, adapters: dict[str, Path], sizes: Sizes, plan: Plan):
        self.number = number
        self.url = ""
        pages = plan.room * sizes.pages + -(-(plan.prompt[1] + 1) // 16)
        engine = EngineConfig(
            model=str(model),
            threads=1,
            max_num_seqs=1,
            max_model_len=plan.prompt[1] + 16,
            kv_cache_memory_bytes=pages * sizes.page_bytes,
            enable_prefix_caching=False,
            page_in_bytes_per_s=round(sizes.pages * sizes.page_bytes / LOAD_SECONDS),
        )
        server = ServerConfig(
            port=0,
            served_model_name="base",
            lora_modules=[f"{name}={path}" for name, path in adapters.items()],
            control_key=KEY,
            state_file=str(folder / f"state-{number}.sqlite"),
            drain_seconds=0.0,
        )
        self._log = folder / f"replica-{number}.log"
        self._command = [sys.executable, "-P", "-m", "lorad", "serve", str(model), *as_flags(engine, server)]
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Waits until it listens."""
        env = without_options(os.environ, EngineConfig, ServerConfig) | {"PYTHONPATH": python_path()}
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(self._command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        async with asyncio.timeout(START_SECONDS):
            while (found := READY.search(self._log.read_text(errors="replace"))) is None:
                if self._process.poll() is not None:
                    raise SystemExit(f"a replica has ended:\n{self._log.read_text(errors='replace')[-2000:]}")
                await asyncio.sleep(0.05)
        self.url = found[1]

    def kill(self) -> None:
        """At once, as a machine that fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def stop(self) -> None:
        """Orderly."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                await asyncio.to_thread(self._process.wait, 20)
            except subprocess.TimeoutExpired:
                self.kill()


class Rig:
    """Where replicas come from."""

    def __init__(self, folder: Path, model: Path, plan: Plan) -> None:
        self.plan = plan
        self._folder, self._model = folder, model
        self._adapters, self.sizes = write_adapters(folder, model, plan)
        self._started = 0

    async def replica(self) -> Replica:
        """One that listens."""
        made = Replica(self._started, self._folder, self._model, self._adapters, self.sizes, self.plan)
        self._started += 1
        await made.start()
        return made

    @contextlib.asynccontextmanager
    async def replicas(self) -> AsyncIterator[list[Replica]]:
        """Fresh ones, as many as planned."""
        made: list[Replica] = []
        try:
            for _ in range(self.plan.replicas):
                made.append(await self.replica())
            yield made
        finally:
            await asyncio.gather(*(one.stop() for one in made))

    @contextlib.asynccontextmanager
    async def routed(self, replicas: list[Replica], policy: str) -> AsyncIterator[tuple[str, RouteFront]]:
        """A router over them: its address, and what's behind it."""
        plan = self.plan
        config = RouteConfig(
            port=0,
            replica=[one.url for one in replicas],
            control_key=KEY,
            policy=policy,  # type: ignore[arg-type]
            away_loads=plan.away_loads,
            rebalance_seconds=plan.rebalance_seconds,
            moves_max=plan.moves_max,
            forget_seconds=5.0,
        )
        server = RouteServer(config)
        address = await server.start()
        front = server.front
        assert front is not None
        try:
            async with asyncio.timeout(60):
                while len(front.replicas.live) < len(replicas):
                    await asyncio.sleep(0.05)
            yield address, front
        finally:
            await server.stop()
