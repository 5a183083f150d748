"""Memory that is about to end: what is held back, what goes on, and that it's over when there's room."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controlling import controlling
from lorad.server.shortage import Shortage, available_bytes
from serving import serving

COMPLETIONS = "/v1/completions"
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    700 kB\n"


@pytest.mark.parametrize(
    ("limit", "taken", "file", "shmem", "left"),
    [
        ("max", 5000, 0, 0, 700 << 10),
        ("600000", 500000, 100000, 0, 200000),
        ("600000", 500000, 100000, 40000, 160000),
        ("99999999", 0, 0, 0, 700 << 10),
        ("600000", "what", 0, 0, 700 << 10),
    ],
)
def test_the_lesser_of_machine_and_container(
    tmp_path: Path, limit: str, taken: object, file: int, shmem: int, left: int
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{taken}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\nfile {file}\nshmem {shmem}\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == left


def test_a_system_that_doesnt_tell(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "meminfo", tmp_path) is None
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 700 << 10


def test_this_system_tells() -> None:
    assert (available_bytes() or 0) > 0


async def test_nobody_waits_while_memory_is_short() -> None:
    async with serving() as client:
        front, left = client.front, [10]
        front.shortage = Shortage(front.gate, 100, 2, available=lambda: left[0])
        front.shortage.look()
        status, health = await client.get("/health")
        assert (status, health) == (200, {"status": "degraded", "reasons": ["memory_low"]})
        client.engine.auto = False
        body = {"model": "base", "prompt": "hi", "max_tokens": 2}
        running = [asyncio.create_task(client.post(COMPLETIONS, **body)) for _ in range(2)]
        async with asyncio.timeout(20):
            while client.engine.running < 2:
                await asyncio.sleep(0.002)
        status, refusal = await client.post(COMPLETIONS, **body)
        assert status == 429 and refusal["error"]["code"] == "memory_low" and "limit 2" in refusal["error"]["message"]
        left[0] = 100
        front.shortage.look()
        assert (await client.get("/health"))[1] == {"status": "ready"}
        waits = asyncio.create_task(client.post(COMPLETIONS, **body))
        await asyncio.sleep(0.02)
        client.engine.auto = True
        while not waits.done():
            client.engine.step()
            await asyncio.sleep(0)
        assert [status for status, _ in await asyncio.gather(*running, waits)] == [200] * 3
        left[0] = 10
        front.shortage.look()
        assert (await client.post(COMPLETIONS, **body, n=3))[0] == 200, "one that comes alone is never refused"


async def test_no_adapter_is_loaded_while_memory_is_short(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        left = [10]
        shortage = Shortage(control.client.front.gate, 100, 2, available=lambda: left[0])
        control.manager.check_load = shortage.check_load
        shortage.look()
        source = control.write("a", "one")
        status, refusal = await control.load("x", source)
        assert status == 429 and refusal["error"]["code"] == "memory_low" and not control.manager.records
        left[0] = 1000
        shortage.look()
        assert (await control.load("x", source))[0] == 200
