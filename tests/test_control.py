"""Adapters while the server runs: loads, reloads, pins, aliases, prewarming, over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controlling import ADAPTERS, controlling
from lorad.control import prewarm as prewarm_module
from lorad.control.routes import PREWARM_NAMES_MAX
from lorad.errors import Unavailable
from lorad.store.state import StateFile

WAIT = 20


async def test_a_load_is_an_operation_that_ends_with_a_name_in_force(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        control.engine.pause = 0.05
        source = control.write("a", "one")
        assert await control.generation("acme/devil") is None
        status, operation = await control.ask("PUT", f"{ADAPTERS}/acme/devil", source=source)
        assert status == 202 and operation["state"] == "running" and operation["adapters"] == ["acme/devil"]
        assert await control.generation("acme/devil") is None, "not before it can be served"
        assert (await control.card("acme/devil"))["state"] == "loading"
        status, ended = await control.ask("GET", f"/v1/operations/{operation['id']}?wait_seconds={WAIT}")
        assert status == 200 and ended["state"] == "succeeded" and ended["changed"] is True
        card = await control.card("acme/devil")
        assert card["state"] == "ready" and card["source"] == source and len(card["digest"]) == 64
        assert await control.generation("acme/devil") == card["generation"] == ended["generation"]
        assert "acme/devil" in [model["id"] for model in (await control.client.get("/v1/models"))[1]["data"]]
        assert card["last_used"] is None or card["last_used"] > 0


async def test_a_failed_load_leaves_no_trace_and_can_be_repeated(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        control.engine.bad = "broken"
        source = control.write("a", "broken")
        status, answer = await control.load("x", source)
        assert status == 400 and answer["error"]["code"] == "adapter_rank" and "broken" in answer["error"]["message"]
        assert await control.generation("x") is None and (await control.card("x"))["state"] == "none"
        assert not control.engine.held and not control.manager.records
        control.write("a", "mended")
        assert (await control.load("x", source))[0] == 200
        assert await control.generation("x") is not None


async def test_a_failed_reload_keeps_what_is_in_force(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        control.engine.bad = "broken"
        source = control.write("a", "one")
        await control.load("x", source)
        before = await control.generation("x")
        control.write("a", "broken")
        assert (await control.load("x", source, reload=True))[0] == 400
        assert (await control.load("x", str(control.root / "nowhere"), reload=True))[0] == 400
        card = await control.card("x")
        assert await control.generation("x") == before == card["generation"] and card["state"] == "ready"
        assert dict(control.engine.held) == {before: 1}


async def test_a_digest_is_held_against_what_the_cache_has_now(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        await control.load("x", source)
        card = await control.card("x")
        file = tmp_path / "adapters" / card["digest"] / "adapter_model.safetensors"
        file.chmod(0o600)
        file.write_text("ONE")  # as many bytes as before
        assert (await control.load("y", source, digest=card["digest"]))[0] == 200
        assert (await control.card("y"))["generation"] == card["generation"], "fetched again"


async def test_loads_are_idempotent(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        control.engine.pause = 0.02
        source, other = control.write("a", "one"), control.write("b", "two")
        answers = await asyncio.gather(*(control.load("x", source) for _ in range(20)))
        assert {status for status, _ in answers} == {200} and len({answer["id"] for _, answer in answers}) == 1
        status, again = await control.load("x", source)
        assert status == 200 and again["changed"] is False
        status, answer = await control.load("x", other)
        assert status == 409 and answer["error"]["code"] == "adapter_exists"
        assert sum(control.engine.held.values()) == 1
        many = await asyncio.gather(*(control.load(f"n{i}", control.write(f"n{i}", f"content {i}")) for i in range(20)))
        assert {status for status, _ in many} == {200} and len(control.engine.held) == 21


async def test_a_reload_switches_in_one_go(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        sources = [control.write("a", "one"), control.write("b", "two")]
        await control.load("x", sources[0])
        seen: set[str | None] = set()
        stop = False

        async def asks() -> None:
            while not stop:
                seen.add(await control.generation("x"))

        askers = [asyncio.create_task(asks()) for _ in range(8)]
        for round in range(20):
            status, operation = await control.load("x", sources[(round + 1) % 2], reload=True)
            assert status == 200 and operation["changed"] is True
            assert await control.generation("x") == operation["generation"], "the very next request"
        stop = True
        await asyncio.gather(*askers)
        assert len(seen) == 2 and None not in seen
        await control.settled()
        assert list(control.engine.held.values()) == [1]


async def test_the_same_content_is_held_once_and_names_are_independent(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        await control.load("a", source)
        await control.load("a2", source)
        generation = await control.generation("a")
        assert await control.generation("a2") == generation and dict(control.engine.held) == {generation: 2}
        assert (await control.unload("a"))[0] == 200
        assert await control.generation("a") is None and await control.generation("a2") == generation
        await control.load("a2", control.write("b", "two"), reload=True)
        assert await control.generation("a2") not in (None, generation)
        await control.settled()
        assert generation not in control.engine.held


async def test_pins(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        assert (await control.load("x", source, pinned=True))[0] == 200
        assert (await control.card("x"))["pinned"] is True
        await control.load("x2", source, pinned=True)
        generation = await control.generation("x")
        assert control.engine.pins[generation or ""] == 2
        await control.load("y", control.write("b", "two"))
        status, answer = await control.ask("PATCH", f"{ADAPTERS}/y", pinned=True)
        assert status == 429 and answer["error"]["code"] == "pins_full" and not (await control.card("y"))["pinned"]
        status, operation = await control.load("z", control.write("c", "three"), pinned=True)
        assert status == 200 and "pinned" in operation["warnings"][0] and not (await control.card("z"))["pinned"]
        status, card = await control.ask("PATCH", f"{ADAPTERS}/x", pinned=False)
        assert status == 200 and card["pinned"] is False and control.engine.pins[generation or ""] == 1
        control.write("a", "newer")
        await control.load("x2", source, reload=True)
        await control.settled()
        newer = await control.generation("x2")
        assert (await control.card("x2"))["pinned"] is True
        assert control.engine.pins[generation or ""] == 0 and control.engine.pins[newer or ""] == 1
        await control.unload("x2")
        assert sum(control.engine.pins.values()) == 0


async def test_aliases(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x-v1", control.write("a", "one"))
        await control.load("x-v2", control.write("b", "two"))
        assert (await control.ask("PUT", "/v1/lora_aliases/x", target="nobody"))[0] == 404
        assert (await control.ask("PUT", "/v1/lora_aliases/x-v1", target="x-v2"))[0] == 400
        assert (await control.ask("PUT", "/v1/lora_aliases/base", target="x-v2"))[0] == 400
        assert (await control.ask("PUT", "/v1/lora_aliases/x", target="x-v1"))[0] == 200
        status, answer = await control.client.post("/v1/completions", model="x", prompt="hi", max_tokens=2)
        assert status == 200 and answer["model"] == "x-v1"
        await control.ask("PUT", "/v1/lora_aliases/x", target="x-v2")
        assert await control.generation("x") == await control.generation("x-v2")
        assert (await control.load("x", control.write("a", "one")))[0] == 400, "an alias's name is taken"
        models = {model["id"]: model["parent"] for model in (await control.client.get("/v1/models"))[1]["data"]}
        assert models["x"] == "x-v2" and models["x-v2"] == "base"
        await control.unload("x-v2")
        assert await control.generation("x") is None
        assert (await control.ask("GET", "/v1/lora_aliases"))[1]["data"][0]["target"] == "x-v2"
        assert (await control.ask("DELETE", "/v1/lora_aliases/x"))[0] == 204
        assert (await control.ask("DELETE", "/v1/lora_aliases/x"))[0] == 404


async def test_prewarming_is_answered_honestly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prewarm_module, "LOOK_SECONDS", 0.005)
    async with controlling(tmp_path) as control:
        names = [f"n{i}" for i in range(30)]
        for name in names:
            await control.load(name, control.write(name, f"content {name}"))
        warm = "/v1/lora_prewarm"
        status, operation = await control.ask("POST", warm, names=names[:5], wait_seconds=WAIT)
        assert status == 200 and operation["state"] == "succeeded" and len(control.engine.hot) == 5
        status, answer = await control.ask("POST", warm, names=names)
        assert status == 409 and answer["error"]["code"] == "prewarm_impossible"
        assert "90 pages" in answer["error"]["message"] and "63" in answer["error"]["message"]
        control.engine.bad = "cold"
        status, answer = await control.ask("POST", warm, names=names[:6], within_seconds=0.05, wait_seconds=WAIT)
        assert status == 503 and answer["error"]["code"] == "prewarm_late" and "n5" in answer["error"]["message"]
        status, answer = await control.ask("POST", warm, names=["nobody"])
        assert status == 404
        for count in (0, PREWARM_NAMES_MAX + 1):
            status, answer = await control.ask("POST", warm, names=names[:1] * count)
            assert status == 400 and answer["error"]["param"] == "names"
            assert answer["error"]["message"] == f"names: 1 to {PREWARM_NAMES_MAX}, got {count}"


async def test_vllms_calls(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
        first, second = control.write("a", "one"), control.write("b", "two")
        status, text = await control.ask("POST", load, lora_name="x", lora_path=first)
        assert (status, text) == (200, "Success: LoRA adapter 'x' added successfully.")
        before = await control.generation("x")
        assert (await control.ask("POST", load, lora_name="x", lora_path=first))[0] == 200, "the same again is fine"
        status, answer = await control.ask("POST", load, lora_name="x", lora_path=second)
        assert status == 400 and "load_inplace" in answer["error"]["message"]
        assert (await control.ask("POST", load, lora_name="x", lora_path=second, load_inplace=True))[0] == 200
        assert await control.generation("x") not in (None, before)
        status, answer = await control.ask("POST", load, lora_name="y", lora_path=str(control.root / "nowhere"))
        assert status == 404 and answer["error"]["param"] == "lora_path"
        for body, param in (({"lora_name": "y"}, "lora_path"), ({"lora_name": "", "lora_path": first}, "lora_name")):
            status, answer = await control.ask("POST", load, **body)
            assert status == 400 and answer["error"]["param"] == param
        status, answer = await control.ask("POST", load, lora_name="y", lora_path=first, load_in_place=True)
        assert status == 400 and answer["error"]["code"] == "unknown_field"
        status, text = await control.ask("POST", unload, lora_name="x")
        assert (status, text) == (200, "Success: LoRA adapter 'x' removed successfully.")
        assert (await control.ask("POST", unload, lora_name="x"))[0] == 404
        assert await control.generation("x") is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ADAPTERS),
        ("GET", f"{ADAPTERS}/x"),
        ("PUT", f"{ADAPTERS}/x"),
        ("DELETE", f"{ADAPTERS}/x"),
        ("PATCH", f"{ADAPTERS}/x"),
        ("POST", "/v1/lora_prewarm"),
        ("GET", "/v1/lora_aliases"),
        ("GET", "/v1/operations"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1//load_lora_adapter"),
        ("POST", "/v1/%6coad_lora_adapter"),
        ("POST", "/v1/unload_lora_adapter"),
    ],
)
async def test_control_wants_its_own_key(tmp_path: Path, method: str, path: str) -> None:
    async with controlling(tmp_path, api_key="user") as control:
        for key, code in (("", "missing_api_key"), ("user", "invalid_api_key")):
            status, answer = await control.ask(method, path, key=key)
            assert status in (401, 404), answer
            if status == 401:
                assert answer["error"]["code"] == code
        status, answer = await control.ask("GET", "/v1/models")
        assert status == 401, "nor is the operator's key a client's"


async def test_control_is_off_without_a_key(tmp_path: Path) -> None:
    async with controlling(tmp_path, control_key="") as control:
        for method, path in (("GET", ADAPTERS), ("POST", "/v1/load_lora_adapter"), ("DELETE", f"{ADAPTERS}/x")):
            status, answer = await control.ask(method, path)
            assert status == 403 and answer["error"]["code"] == "control_off" and "--control-key" in str(answer)


@pytest.mark.parametrize(
    ("method", "path", "fields", "code", "param"),
    [
        ("PUT", f"{ADAPTERS}/base", {"source": "a"}, "adapter_name", None),
        ("PUT", f"{ADAPTERS}/x", {"source": ""}, "source_path", "source"),
        ("PUT", f"{ADAPTERS}/x", {"source": "../a"}, "source_path", "source"),
        ("PUT", f"{ADAPTERS}/x", {"source": "/etc"}, "source_path", "source"),
        ("PUT", f"{ADAPTERS}/x", {"source": "s3://bucket/a"}, "source_scheme", "source"),
        ("PUT", f"{ADAPTERS}/x", {"where": "a"}, "unknown_field", "where"),
        ("PUT", f"{ADAPTERS}/x", {"source": "a", "reload": "yes"}, "field_type", "reload"),
        ("PUT", f"{ADAPTERS}/x", {"source": "a", "wait_seconds": -1}, "field_range", "wait_seconds"),
        ("PUT", f"{ADAPTERS}/x", {"source": "a", "digest": "12"}, "source_digest", None),
        ("PUT", f"{ADAPTERS}/{'x' * 300}", {"source": "a"}, "adapter_name", None),
        ("DELETE", f"{ADAPTERS}/x?within_seconds=soon", {}, "field_type", "within_seconds"),
        ("DELETE", f"{ADAPTERS}/x?within_seconds=nan", {}, "field_range", "within_seconds"),
        ("PATCH", f"{ADAPTERS}/x", {"pinned": True}, "adapter_not_found", None),
        ("GET", f"{ADAPTERS}/x", {}, "adapter_not_found", None),
        ("GET", "/v1/operations/op-1", {}, "operation_not_found", None),
        ("GET", "/v1/operations?wait_seconds=1", {}, None, None),
    ],
)
async def test_refusals_of_control(
    tmp_path: Path, method: str, path: str, fields: dict[str, Any], code: str | None, param: str | None
) -> None:
    async with controlling(tmp_path) as control:
        control.write("a", "one")
        if "wait_seconds" not in fields and method == "PUT":
            fields = {**fields, "wait_seconds": WAIT}
        status, answer = await control.ask(method, path, **fields)
        if code is None:
            assert status == 200
            return
        assert status in (400, 404) and answer["error"]["code"] == code, answer
        assert param is None or answer["error"]["param"] == param
        assert not control.manager.records and not control.engine.held


async def test_a_reload_reads_what_was_written_after_a_load_began(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        control.engine.pause = 0.2
        source = control.write("a", "one")
        first = asyncio.create_task(control.load("x", source))
        async with asyncio.timeout(20):
            while not any(record.loading and record.loading.stage == "checking" for record in control.manager.records):
                await asyncio.sleep(0.002)
        control.write("a", "two")
        status, operation = await control.load("x", source, reload=True)
        assert status == 200 and operation["changed"] is True and (await first)[0] == 200
        assert await control.generation("x") == operation["generation"]


async def test_what_is_asked_for_is_done_though_the_client_leaves(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
        asked = asyncio.create_task(control.ask("PATCH", f"{ADAPTERS}/x", pinned=True))
        await asyncio.sleep(0.001)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await control.settled()
        card = await control.card("x")
        pins = sum(control.engine.pins.values())
        assert card["pinned"] == (pins == 1) and pins in (0, 1)
    async with controlling(tmp_path) as control:
        assert (await control.card("x"))["pinned"] == (pins == 1)


async def test_a_pin_moves_to_the_new_version_where_there_is_room_for_one(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        control.engine.pins_max = 1
        source = control.write("a", "one")
        await control.load("x", source, pinned=True)
        control.write("a", "two")
        status, operation = await control.load("x", source, reload=True)
        assert status == 200 and "warnings" not in operation and (await control.card("x"))["pinned"] is True
        await control.settled()
        assert sum(control.engine.pins.values()) == 1


async def test_pinning_what_is_loaded(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        await control.load("x", source)
        status, operation = await control.load("x", source, pinned=True)
        assert status == 200 and operation["changed"] is False and (await control.card("x"))["pinned"] is True


async def test_a_state_file_that_cant_be_written_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        await control.load("x", source)
        before = await control.generation("x")
        held = dict(control.engine.held)

        def fails(*_: object, **__: object) -> None:
            raise Unavailable("it can't be written down in the state file: disk full", code="state_write")

        for method in ("keep", "remove", "want"):
            with monkeypatch.context() as patch:
                patch.setattr(StateFile, method, fails)
                if method == "remove":
                    status, answer = await control.unload("x")
                else:
                    status, answer = await control.load("x", control.write("b", "two"), reload=True)
                assert status == 503 and answer["error"]["code"] == "state_write"
            await control.settled()
            assert await control.generation("x") == before and dict(control.engine.held) == held, method
            assert (await control.card("x"))["state"] == "ready"
        assert (await control.unload("x"))[0] == 200 and not control.engine.held
