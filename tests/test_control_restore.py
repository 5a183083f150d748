"""What was asked for before the start comes back in the background, and at once when somebody asks for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlling import ADAPTERS, KEY, Control, controlling
from lorad.engine.messages import AdapterInfo
from lorad.errors import AdapterRejected, EngineFailure, LoradError, Unavailable
from scripted_engine import ScriptedEngine, model_info
from serving import CONTEXT, TEXT, VOCAB

NAMES = [f"n{number}" for number in range(6)]


class Recording(ScriptedEngine):
    """Keeps the order of loads; those of `held_back` wait for their event; all are refused while `refusal` is set."""

    def __init__(self) -> None:
        super().__init__(info=model_info(VOCAB, CONTEXT))
        self.loads: list[str] = []
        self.refusal: LoradError | None = None
        self.held_back: dict[str, asyncio.Event] = {}

    def hold_back(self, *names: str) -> None:
        self.held_back = {name: asyncio.Event() for name in names}

    async def begun(self, *names: str) -> None:
        """Waits until these loads have."""
        async with asyncio.timeout(20):
            while not set(names) <= set(self.loads):
                await asyncio.sleep(0.001)

    async def load_adapter(self, name: str, path: str) -> AdapterInfo:
        self.loads.append(name)
        if self.refusal is not None:
            raise self.refusal
        if name in self.held_back:
            await self.held_back[name].wait()
        return await super().load_adapter(name, path)


async def fill(folder: Path, **fields: dict[str, Any]) -> dict[str, str]:
    """Has a server load all names, and stops it. `fields`: further ones of a name's load. The generations."""
    async with controlling(folder) as control:
        for name in NAMES:
            status, _ = await control.load(name, control.write(name, f"content of {name}"), **fields.get(name, {}))
            assert status == 200
        return {name: str((await control.card(name))["generation"]) for name in NAMES}


async def states(control: Control) -> dict[str, str]:
    _, listing = await control.ask("GET", ADAPTERS)
    return {card["name"]: card["state"] for card in listing["data"]}


async def restored(control: Control) -> dict[str, Any]:
    """Brings the rest back; the operation of it."""
    control.manager.begin_restore()
    await control.settled()
    _, listing = await control.ask("GET", "/v1/operations")
    return dict([one for one in listing["data"] if one["kind"] == "restore"][-1])


async def test_names_are_known_before_their_adapters_are_here(tmp_path: Path) -> None:
    generations = await fill(tmp_path)
    engine = Recording()
    async with controlling(tmp_path, engine, restores=False) as control:
        assert await states(control) == dict.fromkeys(NAMES, "restoring") and not engine.loads
        _, listing = await control.client.get("/v1/models")
        cards = {card["id"]: card for card in listing["data"]}
        assert {name: cards[name]["generation"] for name in NAMES} == generations
        assert (await control.client.get("/v1/models/n3"))[1] == cards["n3"] and cards["n3"]["rank"] is None
        operation = await restored(control)
        assert operation["state"] == "succeeded" and operation["ready"] == NAMES == engine.loads
        assert await states(control) == dict.fromkeys(NAMES, "ready")
        assert {name: await control.generation(name) for name in NAMES} == generations


async def test_who_asks_has_it_brought_ahead_of_all_others(tmp_path: Path) -> None:
    generations = await fill(tmp_path)
    async with controlling(tmp_path) as control:
        await control.ask("PUT", "/v1/lora_aliases/short", target="n4")
    engine = Recording()
    async with controlling(tmp_path, engine, restores=False) as control:
        told: list[tuple[int, int, int]] = []
        engine.hold_back("n0", "n4", "n5")
        control.manager.begin_restore(lambda *progress: told.append(progress))
        await engine.begun("n0")
        _, listing = await control.ask("GET", "/v1/operations")
        assert listing["data"][-1]["progress"] == {"done": 0, "total": len(NAMES)}
        asking = [asyncio.create_task(control.generation(name)) for name in ["n5"] * 10 + ["short"] * 10]
        await engine.begun("n4", "n5")
        engine.held_back["n0"].set()
        while (await states(control))["n0"] != "ready":
            await asyncio.sleep(0.001)
        for _ in range(20):
            assert len(engine.loads) == 3, "the others wait while somebody waits"
            await asyncio.sleep(0.001)
        for event in engine.held_back.values():
            event.set()
        answers = await asyncio.gather(*asking)
        assert set(answers[:10]) == {generations["n5"]} and set(answers[10:]) == {generations["n4"]}
        await control.settled()
        assert engine.loads[3:] == ["n1", "n2", "n3"] and told[-1] == (6, 0, 6)


async def test_one_whose_source_is_gone_or_damaged_is_failed_and_the_others_go_on(tmp_path: Path) -> None:
    generations = await fill(tmp_path)
    async with controlling(tmp_path) as control:
        cached = {name: tmp_path / "adapters" / (await control.card(name))["digest"] for name in NAMES}
    for name in ("n1", "n2"):
        shutil.rmtree(cached[name])
    shutil.rmtree(tmp_path / "root" / "n1")
    (tmp_path / "root" / "n2" / "adapter_config.json").write_text("other weights")
    for name in ("n3", "n4"):  # as many bytes as before, but not the same
        file = cached[name] / "adapter_model.safetensors"
        file.chmod(0o600)
        file.write_text(file.read_text().upper())
    shutil.rmtree(tmp_path / "root" / "n4")
    async with controlling(tmp_path, restores=False) as control:
        operation = await restored(control)
        assert operation["state"] == "succeeded" and operation["ready"] == ["n0", "n3", "n5"]
        assert operation["failed"] == ["n1", "n2", "n4"] and operation["left"] == []
        codes = {name: (await control.card(name)).get("error", {}).get("code") for name in NAMES}
        assert codes == {
            **dict.fromkeys(["n0", "n3", "n5"]),
            "n1": "source_missing",
            "n2": "source_digest",
            "n4": "source_missing",
        }
        assert await control.generation("n3") == generations["n3"], "fetched again"
        for name in ("n1", "n2", "n4"):
            assert (await control.client.post("/v1/completions", model=name, prompt="hi"))[0] == 404
            assert name not in [model["id"] for model in (await control.client.get("/v1/models"))[1]["data"]]
        assert (await control.load("n1", control.write("n1", "mended")))[0] == 200, "a load mends it"


class Dying(ScriptedEngine):
    """Its loader dies in the middle of so many loads of a name."""

    def __init__(self, deaths: dict[str, int]) -> None:
        super().__init__(info=model_info(VOCAB, CONTEXT))
        self.deaths = deaths

    async def load_adapter(self, name: str, path: str) -> AdapterInfo:
        if self.deaths.get(name, 0):
            self.deaths[name] -= 1
            raise EngineFailure("the loader was killed by SIGKILL", code="loader_died")
        return await super().load_adapter(name, path)


async def test_one_in_whose_load_the_loader_died_has_a_second_chance_and_no_third(tmp_path: Path) -> None:
    await fill(tmp_path)
    engine = Dying({"n1": 1, "n3": 3})
    async with controlling(tmp_path, engine, restores=False) as control:
        operation = await restored(control)
        assert operation["failed"] == ["n3"] and engine.deaths == {"n1": 0, "n3": 1}
        assert await states(control) == {**dict.fromkeys(NAMES, "ready"), "n3": "failed"}


@pytest.mark.parametrize("code", ["adapter_image", "adapters_full"])
async def test_what_there_is_no_room_for_is_brought_when_its_asked_for(tmp_path: Path, code: str) -> None:
    generations = await fill(tmp_path)
    engine = Recording()
    kind = AdapterRejected if code == "adapter_image" else Unavailable
    async with controlling(tmp_path, engine, restores=False) as control:
        engine.refusal = kind("no room", code=code)
        operation = await restored(control)
        assert operation["state"] == "failed" and operation["error"]["code"] == code
        assert operation["left"] == NAMES and operation["failed"] == [] and engine.loads == ["n0"]
        status, answer = await control.client.post("/v1/completions", model="n2", prompt="hi")
        assert status == 503 and answer["error"]["code"] == code and "no room" in answer["error"]["message"]
        assert await states(control) == dict.fromkeys(NAMES, "restoring")
        engine.refusal = None
        assert await control.generation("n2") == generations["n2"]
        assert (await states(control))["n3"] == "restoring"


async def test_an_unload_of_one_that_isnt_back(tmp_path: Path) -> None:
    await fill(tmp_path)
    engine = Recording()
    async with controlling(tmp_path, engine, restores=False) as control:
        engine.hold_back("n0", "n5")
        control.manager.begin_restore()
        waiting = asyncio.create_task(control.generation("n5"))
        await engine.begun("n0", "n5")
        # One that is being brought, one that isn't yet, one that somebody waits for.
        unloads = [asyncio.create_task(control.unload(name)) for name in ("n0", "n3", "n5")]
        while any(control.manager.find(name) for name in ("n0", "n3", "n5")):
            await asyncio.sleep(0.001)
        for event in engine.held_back.values():
            event.set()
        assert {status for status, _ in await asyncio.gather(*unloads)} == {200}
        assert await waiting is None
        await control.settled()
        assert await states(control) == dict.fromkeys(["n1", "n2", "n4"], "ready") and "n3" not in engine.loads
        assert sum(engine.held.values()) == 3, "what was brought for nobody is given back"
    async with controlling(tmp_path) as control:
        assert list(await states(control)) == ["n1", "n2", "n4"]


async def test_loads_of_one_that_isnt_back(tmp_path: Path) -> None:
    generations = await fill(tmp_path)
    async with controlling(tmp_path, restores=False) as control:
        for name in NAMES:
            control.write(name, f"newer content of {name}")
        status, operation = await control.load("n0", str(control.root / "n0"))
        assert status == 200 and operation["changed"] is False
        assert await control.generation("n0") == generations["n0"], "what was in force, not what's there by now"
        status, answer = await control.load("n1", str(control.root / "n2"))
        assert status == 409 and answer["error"]["code"] == "adapter_exists"
        status, operation = await control.load("n1", str(control.root / "n1"), reload=True)
        assert status == 200 and operation["kind"] == "reload" and operation["changed"] is True
        assert await control.generation("n1") not in (None, generations["n1"])
        status, answer = await control.load("n2", str(control.root / "nowhere"), reload=True)
        assert status == 400 and await control.generation("n2") == generations["n2"], "a failed one leaves it"
        assert (await states(control))["n3"] == "restoring"


async def test_pins_and_prewarming_of_some_that_arent_back(tmp_path: Path) -> None:
    await fill(tmp_path, n4={"pinned": True})
    engine = Recording()
    async with controlling(tmp_path, engine, restores=False) as control:
        assert (await control.ask("PATCH", f"{ADAPTERS}/n3", pinned=True))[1]["pinned"] is True
        status, _ = await control.ask("POST", "/v1/lora_prewarm", names=["n1", "n2"], wait_seconds=20)
        assert status == 200 and engine.loads == ["n3", "n1", "n2"]
        await restored(control)
        assert engine.loads[3:] == ["n4", "n0", "n5"], "those that are to be in pages come first"


async def test_a_pin_without_room_is_still_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await fill(tmp_path, n4={"pinned": True})
    engine = Recording()
    engine.pins_max = 0
    async with controlling(tmp_path, engine) as control:
        card = await control.card("n4")
        assert card["state"] == "ready" and card["pinned"] is False and "'n4' isn't pinned" in caplog.text
    async with controlling(tmp_path) as control:
        assert (await control.card("n4"))["pinned"] is True


async def test_who_waits_hears_of_a_stop(tmp_path: Path) -> None:
    await fill(tmp_path)
    engine = Recording()
    async with controlling(tmp_path, engine, restores=False) as control:
        engine.pause = 60
        waiting = asyncio.create_task(control.client.post("/v1/completions", model="n1", prompt="hi"))
        while not engine.loads:
            await asyncio.sleep(0.001)
        control.client.front.drain()
        for status, answer in (await waiting, await control.client.post("/v1/completions", model="n2", prompt="hi")):
            assert status == 503 and answer["error"]["code"] == "draining"


async def test_an_engine_that_dies_meanwhile_fails_no_adapter(tmp_path: Path) -> None:
    generations = await fill(tmp_path)
    engine = Recording()
    async with controlling(tmp_path, engine, restores=False) as control:
        engine.fault = engine.refusal = Unavailable("the engine is gone", code="engine_gone")
        control.manager.begin_restore()
        await control.settled()
        assert {record.state for record in control.manager.records} == {"restoring"}
    async with controlling(tmp_path) as control:
        assert {name: await control.generation(name) for name in NAMES} == generations


SERVE = """
import sys
from lorad.config import EngineConfig, ServerConfig
from lorad.server.run import serve
model, root, state, key = sys.argv[1:]
sys.exit(serve(EngineConfig(model=model), ServerConfig(port=0, served_model_name="base", control_key=key,
    adapter_roots=[root], state_file=state), engine="scripted_engine:process_script"))
"""


async def test_a_kill_in_the_midst_of_it_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server: killed with some of its adapters brought back, it brings back all."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path / "data"))
    model, root = tmp_path / "model", tmp_path / "root"
    model.mkdir()
    TEXT.tokenizer.core.save(str(model / "tokenizer.json"))
    for number in range(30):
        folder = root / f"n{number:02}"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text(f"content {number}")
        (folder / "adapter_model.safetensors").write_text(f"content {number}")
    names = sorted(folder.name for folder in root.iterdir())
    headers = {"Authorization": f"Bearer {KEY}"}

    async def run(load_pause: float, until: Any) -> Any:
        """Starts a server and kills it when `until(its session)` has ended; the answer of that."""
        monkeypatch.setenv("SCRIPT_LOAD_PAUSE", str(load_pause))
        command = [sys.executable, "-c", SERVE, str(model), str(root), str(tmp_path / "state.sqlite"), KEY]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            address = (await asyncio.to_thread(process.stdout.readline)).split()[-1]
            async with aiohttp.ClientSession(address, headers=headers) as session:
                return await until(session)
        finally:
            process.kill()
            process.wait()

    async def load(session: aiohttp.ClientSession) -> None:
        for name in names:
            body = {"source": str(root / name), "wait_seconds": 20}
            async with session.put(f"{ADAPTERS}/{name}", json=body) as answer:
                assert answer.status == 200, await answer.text()

    async def ready(session: aiohttp.ClientSession, count: int) -> dict[str, str]:
        """Waits until so many are; their generations."""
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            async with session.get(ADAPTERS) as answer:
                cards = (await answer.json())["data"]
            assert [card["name"] for card in cards] == names and all(card["state"] != "failed" for card in cards)
            found = {card["name"]: card["generation"] for card in cards if card["state"] == "ready"}
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)
        raise AssertionError("they don't come back")

    await run(0, load)
    some = await run(0.03, lambda session: ready(session, 3))
    assert 3 <= len(some) < len(names), "it was killed in the midst of it"
    after = await run(0, lambda session: ready(session, len(names)))
    assert after == {name: f"gen-{name}" for name in names}
