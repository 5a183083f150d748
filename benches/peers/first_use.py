"""C9: from the call that registers an adapter nobody has seen to its first token."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
from lorad.bench.adapters import copy_changed
from rich.console import Console
from rich.table import Table

from cases import Case, prompts_of
from layout import Layout, adapter_name
from lorad_peer import Lorad
from serving import HOST, HttpSide, events
from table import OURS, paired, spread
from vllm_cpu import VllmCpu

FIRST_USE = "C9"
KEY = "bench"
SHARE_MAX = 0.1
ASK = Case(FIRST_USE, 1, 1, 0, new_tokens=2)
"""Two new tokens: a case with one counts its prompt."""


class LoradLoads(Lorad):
    """With its control endpoints on."""

    folder: Path

    def command(self, adapters: int, streams_max: int) -> list[str]:
        """No adapter at the start."""
        words = [*super().command(0, streams_max), "--control-key", KEY, "--adapter-roots", str(self.folder)]
        return [*words, "--state-file", str(self.folder / "state.sqlite")]


class VllmLoads(VllmCpu):
    """With loading at run time allowed."""

    def command(self, adapters: int, streams_max: int) -> list[str]:
        """No adapter at the start, room for all on the host, and for some in a step."""
        words = [*super().command(0, streams_max), "--enable-lora", "--max-loras", "4"]
        return [*words, "--max-cpu-loras", str(adapters), "--max-lora-rank", "16"]

    def env(self) -> dict[str, str]:
        """vLLM's switch for it."""
        return super().env() | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}


def measure_first_use(
    layout: Layout, repeats: int, threads: int, logs: Path, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds by side. The first adapter isn't counted: it warms what is made at the first use of any."""
    with tempfile.TemporaryDirectory(prefix="first-", dir=layout.root) as folder:
        for number in range(repeats + 1):
            copy_changed(layout.adapter(0), Path(folder) / adapter_name(number), number + 1)
        LoradLoads.folder = Path(folder)
        sides: list[HttpSide] = [
            LoradLoads(layout, threads, logs / "lorad-loads.log"),
            VllmLoads(layout, threads, logs / "vllm-loads.log"),
        ]
        found: dict[str, list[float]] = {side.name: [] for side in sides}
        try:
            for side in sides:
                side.start(repeats + 1, 1)
                side.sleep()
            for repeat in range(repeats + 1):
                for side in sides if repeat % 2 else sides[::-1]:
                    side.wake()
                    seconds = asyncio.run(_load_and_ask(side, repeat, Path(folder)))
                    side.sleep()
                    if repeat:
                        found[side.name].append(seconds)
                    say(f"  {FIRST_USE}, {side.name}: {seconds:.3f} s{'' if repeat else ', not counted'}")
        finally:
            for side in sides:
                side.stop()
            shutil.rmtree(Path(folder), ignore_errors=True)
    return found


async def _load_and_ask(side: HttpSide, number: int, folder: Path) -> float:
    name = adapter_name(number)
    load = {"lora_name": name, "lora_path": str(folder / name)}
    body = side.body(prompts_of(ASK, number)[0], number, ASK.new_tokens)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(base_url=f"http://{HOST}:{side.port}", headers=headers) as session:
        began = time.perf_counter()
        async with session.post("/v1/load_lora_adapter", json=load) as reply:
            if reply.status != 200:
                raise RuntimeError(f"{side.name}: {await reply.text()}")
        async with session.post(side.path, data=json.dumps(body).encode(), headers=JSON) as reply:
            async for event in events(reply.content):
                if "error" in event:
                    raise RuntimeError(f"{side.name}: {event['error']}")
                if event.get("choices"):
                    return time.perf_counter() - began
    raise RuntimeError(f"{side.name} made no token")


JSON = {"Content-Type": "application/json"}


def print_first_use(found: dict[str, list[float]], console: Console) -> None:
    """Medians, ranges, lorad's share of the other's time."""
    table = Table(
        title="C9: an adapter nobody has seen: the load call to its first token; median (least–greatest)"
    )
    for heading in ("side", "s", "lorad ÷ side", "to reach"):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    for name, seconds in found.items():
        ours = name == OURS
        ratio = "" if ours else spread(paired(found[OURS], seconds), 3)
        table.add_row(name, spread(seconds, 3), ratio, "" if ours else f"≤ {SHARE_MAX:g} ×")
    console.print(table)
