"""What was asked for survives a restart: of the server, of the state file's owner, in the middle of anything."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from controlling import ADAPTERS, controlling
from lorad.cli import main
from lorad.errors import Unavailable
from lorad.models.open import open_model
from lorad.store.state import StateFile
from tiny import make_tiny


async def test_a_restart_comes_back_to_what_was_asked_for(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("acme/a", control.write("a", "one"), pinned=True)
        await control.load("b", control.write("b", "two"))
        await control.load("c", control.write("c", "three"))
        await control.unload("c")
        await control.ask("PUT", "/v1/lora_aliases/main", target="b")
        cards = {name: await control.card(name) for name in ("acme/a", "b")}
        # A trainer goes on writing, and tidies up: what was loaded is what comes back.
        control.write("a", "newer")
        shutil.rmtree(control.root / "b")
    async with controlling(tmp_path) as control:
        assert [record.name for record in control.manager.records] == ["acme/a", "b"]
        for name, before in cards.items():
            card = await control.card(name)
            assert card == {**before, "last_used": card["last_used"]}
            assert await control.generation(name) == before["generation"]
        assert await control.generation("main") == cards["b"]["generation"] and await control.generation("c") is None
        # The source has newer content, which a reload brings.
        status, operation = await control.load("acme/a", cards["acme/a"]["source"], reload=True)
        assert status == 200 and operation["changed"] is True


async def test_one_that_cant_be_brought_back_is_listed_as_failed(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        await control.load("a", source)
        await control.load("b", control.write("b", "two"))
    shutil.rmtree(tmp_path / "adapters")
    (tmp_path / "root" / "a" / "adapter_config.json").write_text("changed")
    async with controlling(tmp_path) as control:
        card = await control.card("a")
        assert card["state"] == "failed" and card["error"]["code"] == "source_digest", "other weights are never served"
        assert await control.generation("a") is None and await control.generation("b") is not None
        assert "a" not in [model["id"] for model in (await control.client.get("/v1/models"))[1]["data"]]
    async with controlling(tmp_path) as control:
        assert (await control.card("a"))["state"] == "failed", "it's still asked for"
        assert (await control.load("a", source))[0] == 200, "and a load mends it"
        assert (await control.card("a"))["state"] == "ready"
    async with controlling(tmp_path) as control:
        assert await control.generation("a") is not None
        (tmp_path / "root" / "a" / "adapter_config.json").write_text("changed again")
    shutil.rmtree(tmp_path / "adapters")
    async with controlling(tmp_path) as control:
        assert (await control.card("a"))["state"] == "failed"
        assert (await control.unload("a"))[0] == 200, "or it's unloaded"
        assert (await control.unload("a"))[0] == 404
    async with controlling(tmp_path) as control:
        assert [record.name for record in control.manager.records] == ["b"]


async def test_a_load_that_was_accepted_is_taken_up_again(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
        before = await control.generation("x")
        control.engine.pause = 60
        newer = control.write("b", "two")
        for name, reload in (("x", True), ("y", False)):
            status, _ = await control.ask("PUT", f"{ADAPTERS}/{name}", source=newer, reload=reload)
            assert status == 202
        assert await control.generation("x") == before
    async with controlling(tmp_path) as control:
        assert await control.generation("x") == await control.generation("y") not in (None, before)
        control.engine.pause = 60
        third = control.write("c", "broken")
        await control.ask("PUT", f"{ADAPTERS}/x", source=third, reload=True)
        kept = await control.generation("x")
    shutil.rmtree(tmp_path / "root" / "c")
    async with controlling(tmp_path) as control:
        assert await control.generation("x") == kept, "one that can't be had any more leaves what was in force"


async def test_a_state_file_has_one_server_of_a_base(tmp_path: Path) -> None:
    async with controlling(tmp_path):
        with pytest.raises(Unavailable, match="--state-file") as refusal:
            StateFile(tmp_path / "state.sqlite", "base-digest")
        assert refusal.value.code == "state_locked"
        other = StateFile(tmp_path / "state.sqlite", "another base")
        other.want("x", "somewhere", "", pinned=False)
        assert [row.name for row in other.adapters()] == ["x"]
        other.close()
    async with controlling(tmp_path) as control:
        assert not control.manager.records, "another base's adapters are no business of this one"


def test_a_state_file_of_a_newer_lorad_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    StateFile(path, "base").close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(Unavailable, match="newer") as refusal:
        StateFile(path, "base")
    assert refusal.value.code == "state_version"


@pytest.mark.parametrize("content", [b"this is no database, though it has some length" * 100, b"\0" * 5000])
def test_what_is_no_state_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(content)
    with pytest.raises(Unavailable) as refusal:
        StateFile(path, "base")
    assert refusal.value.code == "state_file" and path.read_bytes() == content


def test_a_state_file_that_cant_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable) as refusal:
        StateFile(tmp_path / "file" / "state.sqlite", "base")
    assert refusal.value.code == "state_file"


async def test_changes_are_on_the_disk_when_their_call_returns(tmp_path: Path) -> None:
    """A copy taken at any moment, as after a kill, has all that was acknowledged."""
    async with controlling(tmp_path) as control:
        for number in range(8):
            await control.load(f"n{number}", control.write(f"n{number}", f"content {number}"))
            if number % 3 == 0:
                await control.unload(f"n{number}")
            copy = tmp_path / f"copy{number}"
            copy.mkdir()
            for file in tmp_path.glob("state.sqlite*"):
                await asyncio.to_thread(shutil.copy, file, copy)
            state = StateFile(copy / "state.sqlite", "base-digest")
            names = [row.name for row in state.adapters()]
            state.close()
            assert names == [f"n{done}" for done in range(number + 1) if done % 3]


async def test_adapters_that_a_new_base_leaves_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = make_tiny(tmp_path / "tiny")
    digest = open_model(base).digest
    state = StateFile(tmp_path / "state.sqlite", digest)
    state.want("kept", "somewhere", "", pinned=False)
    command = ["adapters", "stale", "--model", str(base), "--state-file", str(tmp_path / "state.sqlite")]
    assert main(command) == 0 and "all adapters" in capsys.readouterr().out
    async with controlling(tmp_path) as control:  # of another base
        await control.load("acme/a", control.write("a", "one"))
        assert main(command) == 1
        text = capsys.readouterr().out
        assert "acme/a" in text and "kept" not in text
        assert main([*command, "--json"]) == 1
        (found,) = json.loads(capsys.readouterr().out)["stale"]
        assert found["name"] == "acme/a" and found["generation"] == await control.generation("acme/a")
    state.close()
    assert main([*command[:-1], str(tmp_path / "nowhere.sqlite")]) == 2
    assert "[state_file]" in capsys.readouterr().err and not (tmp_path / "nowhere.sqlite").exists()
    assert main(["adapters", "stale", "--model", "/no/such/model"]) == 2 and "[model_" in capsys.readouterr().err


async def test_a_load_that_the_engines_death_ended_is_taken_up_again(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        control.engine.pause = 0.2
        asked = asyncio.create_task(control.load("x", control.write("a", "one")))
        await asyncio.sleep(0.1)
        control.engine.fault = Unavailable("the engine is gone", code="engine_gone")
        control.engine.bad = "one"
        assert (await asked)[0] in (400, 503)
    async with controlling(tmp_path) as control:
        assert await control.generation("x") is not None


async def test_a_failing_retry_of_a_failed_name_keeps_it(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
    shutil.rmtree(tmp_path / "adapters")
    shutil.rmtree(tmp_path / "root" / "a")
    for _ in range(2):
        async with controlling(tmp_path) as control:
            assert (await control.card("x"))["state"] == "failed"
            assert (await control.load("x", str(control.root / "b")))[0] == 400


async def test_pins_of_accepted_loads_come_back(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
        control.engine.pause = 60
        await control.ask("PUT", f"{ADAPTERS}/x", source=control.write("b", "two"), reload=True, pinned=True)
    for _ in range(2):
        async with controlling(tmp_path) as control:
            assert (await control.card("x"))["pinned"] is True


async def test_names_of_the_start_and_aliases(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("x", control.write("a", "one"))
        await control.ask("PUT", "/v1/lora_aliases/short", target="x")
    async with controlling(tmp_path, restores=False) as control:
        assert control.manager.registry.aliases == {"short": "x"}
    async with controlling(tmp_path, restores=False, taken=["short"]) as control:
        assert not control.manager.registry.aliases
    async with controlling(tmp_path, base="x") as control:
        card = await control.card("x")
        assert card["state"] == "failed" and card["error"]["code"] == "adapter_name" and not control.engine.held
