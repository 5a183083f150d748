"""A state file that vanishes, or is another, beneath a running server."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from controlling import Control, controlling
from lorad.errors import Unavailable
from lorad.store import thread
from lorad.store.lock import lock_path
from lorad.store.state import StateFile, by_base

BASE = "base-digest"


def rows(path: Path, base: str = BASE) -> dict[str, str]:
    """Names and sources of a base, as the next server of it finds them; the file has no other user then."""
    with sqlite3.connect(path) as database:
        return dict(database.execute("SELECT name, source || wanted_source FROM adapters WHERE base = ?", (base,)))


def remove(folder: Path, pattern: str = "state.sqlite*") -> None:
    for file in folder.glob(pattern):
        file.unlink()


async def two(control: Control) -> dict[str, str]:
    """Loads x and y, with an alias; their sources."""
    sources = {name: control.write(name, f"content of {name}") for name in ("x", "y")}
    for name, source in sources.items():
        await control.load(name, source)
    await control.ask("PUT", "/v1/lora_aliases/short", target="y")
    return sources


@pytest.mark.parametrize("pattern", ["state.sqlite", "state.sqlite*"])
async def test_a_deleted_one_is_written_anew_by_the_next_change(
    tmp_path: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with controlling(tmp_path) as control:
        sources = await two(control)
        remove(tmp_path, pattern)
        sources["z"] = control.write("z", "content of z")
        assert (await control.load("z", sources["z"]))[0] == 200 and (await control.unload("x"))[0] == 200
        del sources["x"]
        assert caplog.text.count("was deleted") == 1
        with pytest.raises(Unavailable) as refusal:
            StateFile(tmp_path / "state.sqlite", BASE)
        assert refusal.value.code == "state_locked", "it's still this server's"
        generations = {name: await control.generation(name) for name in ("y", "z", "short")}
    assert rows(tmp_path / "state.sqlite") == sources
    async with controlling(tmp_path) as control:
        assert {name: await control.generation(name) for name in ("y", "z", "short")} == generations


async def test_one_that_is_deleted_while_nothing_changes_is_noticed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "LOOK_SECONDS", 0.01)
    async with controlling(tmp_path) as control:
        sources = await two(control)
        remove(tmp_path)
        found: dict[str, str] = {}
        async with asyncio.timeout(20):
            while found != sources:
                await asyncio.sleep(0.01)
                with contextlib.suppress(Unavailable):  # it isn't there yet, or is empty
                    found = {row.name: row.source for _, row in by_base(tmp_path / "state.sqlite")}


async def test_one_that_is_replaced_gets_what_is_asked_for_and_keeps_other_bases(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backup = tmp_path / "backup" / "state.sqlite"
    for base, name in ((BASE, "forgotten"), ("another base", "others")):
        state = StateFile(backup, base)
        state.want(name, "somewhere", "", pinned=False)
        state.close()
    async with controlling(tmp_path) as control:
        sources = await two(control)
        shutil.copy(backup, tmp_path / "new")
        (tmp_path / "new").rename(tmp_path / "state.sqlite")
        assert (await control.unload("x"))[0] == 200
        del sources["x"]
        assert caplog.text.count("was replaced") == 1
    assert rows(tmp_path / "state.sqlite") == sources
    assert rows(tmp_path / "state.sqlite", "another base") == {"others": "somewhere"}


async def test_two_servers_of_one_file_write_both_theirs(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    servers = {base: StateFile(path, base) for base in ("one", "two")}
    for base, state in servers.items():
        state.want(f"{base}'s", "somewhere", "", pinned=False)
    StateFile(path, "none").want("no server's", "somewhere", "", pinned=False)
    remove(tmp_path)
    for base, state in servers.items():
        state.want(f"{base}'s newer", "somewhere", "", pinned=False)
    for state in servers.values():
        state.close()
    for base in servers:
        assert set(rows(path, base)) == {f"{base}'s", f"{base}'s newer"}
    assert set(rows(path, "none")) == {"no server's"}


async def test_what_is_no_state_file_refuses_changes_and_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(thread, "LOOK_SECONDS", 0.01)
    content = b"this is no database, though it has some length" * 100
    async with controlling(tmp_path) as control:
        sources = await two(control)
        remove(tmp_path)
        (tmp_path / "state.sqlite").write_bytes(content)
        for _ in range(3):
            status, answer = await control.unload("x")
            assert status == 503 and answer["error"]["code"] == "state_file"
            await asyncio.sleep(0.02)
        assert await control.generation("x") is not None and (await control.card("x"))["state"] == "ready"
        assert (tmp_path / "state.sqlite").read_bytes() == content
        assert caplog.text.count("changes are refused") == 1
        (tmp_path / "state.sqlite").unlink()
        assert (await control.unload("x"))[0] == 200
        del sources["x"]
    assert rows(tmp_path / "state.sqlite") == sources


async def test_another_server_that_took_the_name_keeps_it(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await two(control)
        remove(tmp_path)
        lock_path(tmp_path / "state.sqlite", BASE).unlink()
        other = StateFile(tmp_path / "state.sqlite", BASE)
        status, answer = await control.unload("x")
        assert status == 503 and answer["error"]["code"] == "state_locked"
        assert not other.adapters()
        other.close()
        assert (await control.unload("x"))[0] == 200


def test_a_failed_reload_takes_its_pin_back(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state.sqlite", BASE)
    state.want("x", "one", "", pinned=False)
    state.keep("x", "one", "digest", "generation")
    state.want("x", "two", "", pinned=True)
    state.give_up("x")
    (row,) = state.adapters()
    fields: dict[str, Any] = row._asdict()
    assert not fields["wanted_pinned"] and fields["wanted_source"] == "" and fields["source"] == "one"
    state.close()


async def test_it_is_its_owners_only(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await two(control)
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.glob("state.sqlite*")}
        assert {"state.sqlite", "state.sqlite-wal", "state.sqlite-shm"} <= set(modes)
        assert set(modes.values()) == {0o600}, modes
