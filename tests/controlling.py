"""A server with control endpoints for tests: real state file, adapter cache, HTTP; a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import msgspec

from lorad.control.manager import AdapterManager
from lorad.control.setup import make_manager, on_unknown
from lorad.server.registry import Registry
from lorad.store.state import STATE_FILE, StateFile
from scripted_engine import ScriptedEngine, model_info
from serving import CONTEXT, VOCAB, Client, serving

KEY = "operator"
ADAPTERS = "/v1/lora_adapters"


class Control:
    """An operator's view of a server."""

    def __init__(self, client: Client, manager: AdapterManager, root: Path) -> None:
        self.client = client
        self.manager = manager
        self.engine = client.engine
        self.root = root

    def write(self, name: str, content: str) -> str:
        """An adapter's folder with some content; its source."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(content)
        (folder / "adapter_model.safetensors").write_text(content)
        return str(folder)

    async def ask(self, method: str, path: str, *, key: str = KEY, **fields: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = None
        if fields:
            body, headers["Content-Type"] = msgspec.json.encode(fields), "application/json"
        url = self.client.address + path
        async with self.client.session.request(method, url, data=body, headers=headers) as response:
            content = await response.read()
            is_json = response.content_type == "application/json"
            return response.status, msgspec.json.decode(content) if is_json else content.decode()

    async def load(self, name: str, source: str, **fields: Any) -> tuple[int, Any]:
        return await self.ask("PUT", f"{ADAPTERS}/{name}", source=source, wait_seconds=20, **fields)

    async def unload(self, name: str, query: str = "wait_seconds=20") -> tuple[int, Any]:
        return await self.ask("DELETE", f"{ADAPTERS}/{name}?{query}")

    async def card(self, name: str) -> dict[str, Any]:
        status, card = await self.ask("GET", f"{ADAPTERS}/{name}")
        return dict(card) if status == 200 else {"state": "none"}

    async def generation(self, name: str) -> str | None:
        """What answers under a name; None: nobody."""
        status, answer = await self.client.post("/v1/completions", model=name, prompt="hi", max_tokens=2)
        return answer["system_fingerprint"] if status == 200 else None

    async def at_stage(self, stage: str) -> None:
        """Waits until a load has come to a stage."""
        async with asyncio.timeout(20):
            while not any(record.loading and record.loading.stage == stage for record in self.manager.records):
                await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """Waits until nothing is under way."""
        async with asyncio.timeout(20):
            while self.manager.busy:
                await asyncio.sleep(0.002)


async def another_engine(control: Control) -> None:
    """The engine has died, and another one is there: what it's to know is on its way to it when this returns."""
    control.engine.start_again()
    await control.manager.engine_died()
    control.manager.begin_restore()
    control.engine.resume()


@contextlib.asynccontextmanager
async def controlling(
    folder: Path,
    engine: ScriptedEngine | None = None,
    *,
    restores: bool = True,
    taken: Collection[str] = (),
    **options: Any,
) -> AsyncIterator[Control]:
    """A server whose data folder and adapter root lie in `folder`. `restores`: what it had before is back when this
    begins; else nothing is."""
    engine = engine or ScriptedEngine(info=model_info(VOCAB, CONTEXT))
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    managers: list[AdapterManager] = []

    async def control(registry: Registry, front: Any, config: Any) -> AdapterManager:
        state = await asyncio.to_thread(StateFile, folder / STATE_FILE, engine.model.digest)
        manager = await asyncio.to_thread(make_manager, engine, registry, front.in_flight, config, state, folder=folder)
        await manager.read_state(taken)
        front.names.on_unknown = on_unknown(manager, config)
        front.names.is_taken = manager.has
        if restores:
            manager.begin_restore()
        managers.append(manager)
        return manager

    options = {"control_key": KEY, "adapter_roots": [str(root)], **options}
    async with serving(engine, adapters=(), control=control, **options) as client:
        try:
            control = Control(client, managers[0], root)
            await control.settled()
            yield control
        finally:
            await managers[0].close()
