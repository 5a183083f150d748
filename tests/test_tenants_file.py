"""Tenants, keys and usage in the state file, and the commands that change them."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from lorad.cli import main
from lorad.errors import LoradError
from lorad.store.migrations import STEPS
from lorad.store.state import StateFile
from lorad.tenants.file import TenantFile, Used, UsedRow, key_hash
from lorad.tenants.sums import as_csv, as_dicts
from lorad.tenants.tenant import LIMIT_MAX, Limits, Tenant


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def run(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command prints as JSON."""
    assert main([*words, "--json", "--state-file", str(path)]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_tenant_is_what_was_set(path: Path) -> None:
    file = TenantFile(path)
    limits = Limits(1, 2, 3, 4, 5, 6)
    made = file.put(Tenant("acme", 0, ("acme/*", "shared"), False, 250, limits))
    assert made == Tenant("acme", 1, ("acme/*", "shared"), False, 250, limits)
    assert file.put(made._replace(weight=7)).number == 1
    assert TenantFile(path).tenants() == [made._replace(weight=7)]


def test_a_number_is_never_given_again(path: Path) -> None:
    file = TenantFile(path)
    numbers = [file.put(Tenant(name, 0)).number for name in ("a", "b")]
    file.remove("b")
    assert file.put(Tenant("b", 0)).number not in numbers


@pytest.mark.parametrize(
    ("tenant", "field"),
    [
        (Tenant("", 0), "name"),
        (Tenant("a b", 0), "name"),
        (Tenant("-a", 0), "name"),
        (Tenant("é", 0), "name"),
        (Tenant("a" * 65, 0), "name"),
        (Tenant("a", 0, weight=0), "weight"),
        (Tenant("a", 0, weight=1001), "weight"),
        (Tenant("a", 0, limits=Limits(running_max=-1)), "running_max"),
        (Tenant("a", 0, limits=Limits(tokens_per_minute=LIMIT_MAX + 1)), "tokens_per_minute"),
    ],
)
def test_what_no_tenant_may_have(path: Path, tenant: Tenant, field: str) -> None:
    file = TenantFile(path)
    with pytest.raises(LoradError) as refusal:
        file.put(tenant)
    assert (refusal.value.code, refusal.value.param) == ("tenant_field", field) and field in refusal.value.message
    assert file.tenants() == []


@pytest.mark.parametrize(
    ("patterns", "name", "may"),
    [
        (("acme/*",), "acme/x", True),
        (("acme/*",), "acme", False),
        (("acme/*",), "acme/", True),
        (("acme",), "acme2", False),
        (("*",), "anything", True),
        ((), "anything", False),
        (("a*b",), "axb", False),  # a star is one only at the end
        (("a*b",), "a*b", True),
        (("[ab]",), "a", False),
    ],
)
def test_which_names_a_tenant_may_use(patterns: tuple[str, ...], name: str, may: bool) -> None:
    assert Tenant("t", 1, patterns).may_use(name, is_base=False) is may


def test_the_base_is_allowed_by_itself() -> None:
    assert Tenant("t", 1, (), base=True).may_use("base", is_base=True)
    assert not Tenant("t", 1, ("*",), base=False).may_use("base", is_base=True)


def test_a_key_is_shown_once_and_kept_as_a_hash(path: Path) -> None:
    file = TenantFile(path)
    file.put(Tenant("acme", 0))
    key, row = file.add_key("acme", "ci")
    assert row.hash == key_hash(key) and file.keys() == [row]
    file.close()
    for found in path.parent.glob("state.sqlite*"):
        assert key.encode() not in found.read_bytes() and key.removeprefix("lorad-").encode() not in found.read_bytes()


def test_keys_go_with_their_tenant_and_operators_stay(path: Path) -> None:
    file = TenantFile(path)
    file.put(Tenant("acme", 0))
    file.add_key("acme")
    _, operators = file.add_key(None)
    file.remove("acme")
    assert file.keys() == [operators]
    with pytest.raises(LoradError, match="no tenant 'acme'"):
        file.add_key("acme")


def test_a_beginning_of_an_id_must_be_one_keys(path: Path) -> None:
    file = TenantFile(path)
    rows = [file.add_key(None)[1] for _ in range(40)]
    digits = [row.hash[0] for row in rows]
    twice = next(digit for digit in digits if digits.count(digit) > 1)
    for id, code in ((twice, "key_ambiguous"), ("", "key_not_found"), ("xyz", "key_not_found")):
        with pytest.raises(LoradError) as refusal:
            file.remove_key(id)
        assert refusal.value.code == code
    assert file.remove_key(rows[0].id) == rows[0] and len(file.keys()) == 39


def test_usage_adds_up_over_writers(path: Path) -> None:
    def write() -> None:
        file = TenantFile(path)
        for _ in range(25):
            file.add_usage([UsedRow("b", "acme", "m", 5, Used(1, 2, 3, 4, 0.5)), UsedRow("b", "acme", "n", 6, Used(1))])
        file.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert TenantFile(path).usage() == [
        UsedRow("b", "acme", "m", 5, Used(100, 200, 300, 400, 50.0)),
        UsedRow("b", "acme", "n", 6, Used(100)),
    ]
    assert [row.hour for row in TenantFile(path).usage(since_hour=6)] == [6]


def test_many_may_make_the_file_at_once(tmp_path: Path) -> None:
    """Each of 40 files is made by four threads at once: none is told that it's locked."""
    failures: list[Exception] = []

    def make(file: Path, start: threading.Barrier) -> None:
        start.wait()
        try:
            TenantFile(file).close()
        except Exception as error:
            failures.append(error)

    for number in range(40):
        start = threading.Barrier(4)
        threads = [threading.Thread(target=make, args=(tmp_path / f"{number}.sqlite", start)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_state_file_of_before_tenants_is_brought_on_and_kept(path: Path) -> None:
    database = sqlite3.connect(path)
    database.executescript(STEPS[0] + "; PRAGMA user_version = 1;")
    database.execute("INSERT INTO aliases VALUES ('base', 'prod', 'acme')")
    database.commit()
    database.close()
    assert TenantFile(path).tenants() == []
    state = StateFile(path, "base")
    assert state.aliases() == {"prod": "acme"}
    state.close()


def test_many_who_open_a_new_file_at_once(path: Path) -> None:
    failures: list[BaseException] = []

    def open_it() -> None:
        try:
            TenantFile(path).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and TenantFile(path).tenants() == []


def test_the_commands(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(path, capsys, "tenants", "set", "acme", "--adapters", "acme/*", "x", "--no-base", "--tokens-per-minute", "9000")
    (tenant,) = run(path, capsys, "tenants", "set", "acme", "--weight", "300")
    assert tenant["adapters"] == ["acme/*", "x"] and not tenant["base"]
    assert (tenant["weight"], tenant["tokens_per_minute"], tenant["running_max"]) == (300, 9000, 0)
    (key,) = run(path, capsys, "keys", "add", "acme", "--label", "ci")
    (operators,) = run(path, capsys, "keys", "add", "--operator")
    listed = run(path, capsys, "keys", "list")
    assert [(one["tenant"], one["operator"], one["label"]) for one in listed] == [
        ("acme", False, "ci"),
        (None, True, ""),
    ]
    assert key["key"] not in json.dumps(listed) and key["key"] != operators["key"]
    run(path, capsys, "keys", "remove", key["id"])
    assert [one["id"] for one in run(path, capsys, "keys", "list")] == [operators["id"]]
    TenantFile(path).add_usage([UsedRow("b", "acme", "=cmd()", 400_000, Used(3, 100, 50, 20, 1.5, 1, 1000, 0.1))])
    (used,) = run(path, capsys, "usage", "--by", "tenant")
    assert used == {"tenant": "acme"} | Used(3, 100, 50, 20, 1.5, 1, 1000, 0.1)._asdict()
    assert main(["usage", "--csv", "--state-file", str(path)]) == 0
    heading, line = csv.reader(io.StringIO(capsys.readouterr().out))
    assert heading[:3] == ["tenant", "model", "requests"] and line[:3] == ["acme", "'=cmd()", "3"]
    for words in (("tenants", "list"), ("keys", "list"), ("usage",)):
        assert main([*words, "--state-file", str(path)]) == 0
        assert ("acme" in capsys.readouterr().out) is (words[0] != "keys")
    run(path, capsys, "tenants", "remove", "acme")
    assert run(path, capsys, "tenants", "list") == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("tenants", "remove", "nobody"), "tenant_not_found"),
        (("keys", "add", "nobody"), "tenant_not_found"),
        (("keys", "remove", "ff"), "key_not_found"),
        (("usage", "--by", "colour"), "option_form"),
        (("usage", "--hours", "0"), "option_range"),
        (("tenants", "set", "a", "--weight", "0"), "tenant_field"),
        (("tenants", "remove", "\udcff"), "tenant_not_found"),
        (("tenants", "set", "\udcff"), "tenant_field"),
        (("tenants", "set", "a", "--adapters", "\udcff*"), "adapter_name"),
        (("keys", "add", "--operator", "--label", "\udcff"), "tenant_field"),
        (("keys", "add", "--operator", "--label", "a\x1b[31mred"), "tenant_field"),
        (("keys", "add", "--operator", "--label", "a" * 257), "tenant_field"),
        (("keys", "remove", "\udcff"), "key_not_found"),
    ],
)
def test_what_commands_refuse(
    path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: str
) -> None:
    TenantFile(path).close()
    assert main([*words, "--state-file", str(path)]) == 1
    assert f"[{code}]" in capsys.readouterr().err


COMMANDS = [
    ("tenants", "set", "a"),
    ("tenants", "list"),
    ("tenants", "remove", "a"),
    ("keys", "add", "--operator"),
    ("keys", "add", "a"),
    ("keys", "list"),
    ("keys", "remove", "ff"),
    ("usage",),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_file_that_isnt_there_is_made_by_commands_that_add_to_it(
    path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    path = path.parent / "folder" / path.name
    makes = words in (("tenants", "set", "a"), ("keys", "add", "--operator"))
    assert main([*words, "--state-file", str(path)]) == (0 if makes else 1)
    assert ("[state_missing]" not in capsys.readouterr().err) is makes is path.exists() is path.parent.exists()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("pattern", ["state.sqlite", "state.sqlite*"])
def test_a_file_deleted_beneath_a_server_is_made_by_no_command(
    path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], pattern: str
) -> None:
    """The server would take it for another that is meant to hold from then on: all tenants would be gone."""
    state, file = StateFile(path, "base"), TenantFile(path)
    acme = file.put(Tenant("acme", 0))
    for found in path.parent.glob(pattern):
        found.unlink()
    assert main([*words, "--state-file", str(path)]) == 1
    assert "[state_missing]" in (told := capsys.readouterr().err) and "writes it anew" in told and not path.exists()
    state.look()
    assert file.tenants() == [acme]
    file.close()
    state.close()


def test_a_file_that_is_none(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text("no database, but some text that is longer than a header")
    assert main(["tenants", "list", "--state-file", str(path)]) == 1
    assert "[state_file]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd()", "'=cmd()"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@sum(a)", "'@sum(a)"),
        (" =cmd()", "' =cmd()"),
        ("\uff1dcmd()", "'\uff1dcmd()"),
        ("a;=cmd()", "a;=cmd()"),
        ('a",=cmd()', 'a",=cmd()'),
        ("acme/devil", "acme/devil"),
    ],
)
def test_a_spreadsheet_takes_no_name_for_a_formula(name: str, cell: str) -> None:
    text = as_csv([UsedRow("b", "acme", name, 5, Used(1))], ("model",))
    assert next(iter(list(csv.reader(io.StringIO(text)))[1])) == cell
    quoted = cell.replace('"', '""')
    assert text.splitlines()[1].startswith(f'"{quoted}",1,'), "in quotes, whatever separates fields where it's opened"


def test_seconds_are_sums_without_noise() -> None:
    rows = [UsedRow("b", "acme", "m", hour, Used(1, seconds=0.1, load_seconds=0.1)) for hour in range(3)]
    (told,) = as_dicts(rows, ("tenant",))
    assert (told["seconds"], told["load_seconds"]) == (0.3, 0.3) and ",0.3," in as_csv(rows, ("tenant",))


def test_another_file_under_the_name_is_used_from_then_on(path: Path, tmp_path: Path) -> None:
    files, other = [TenantFile(path) for _ in range(3)], TenantFile(tmp_path / "other.sqlite")
    files[0].put(Tenant("old", 0))
    other.put(Tenant("new", 0))
    other.close()
    before = files[0].version()
    path.rename(tmp_path / "copy.sqlite")
    (tmp_path / "other.sqlite").rename(path)
    assert files[0].version() != before
    for number, file in enumerate(files):  # the journals of the old file say nothing to the new one, nor later ones
        file.put(Tenant(f"by-{number}", 0))
    for file in (*files, TenantFile(path)):
        assert [tenant.name for tenant in file.tenants()] == ["new", "by-0", "by-1", "by-2"]
        file.close()
    copy = TenantFile(tmp_path / "copy.sqlite")
    assert [tenant.name for tenant in copy.tenants()] == ["old"], "what it had in its journal is in it"
    copy.close()


@pytest.mark.parametrize("pattern", ["state.sqlite", "state.sqlite*"])
def test_a_deleted_file_is_written_anew_with_tenants_keys_and_usage(path: Path, pattern: str) -> None:
    state, server = StateFile(path, "base"), TenantFile(path)
    acme = server.put(Tenant("acme", 0, ("acme/*",)))
    _, key = server.add_key("acme", "ci")
    gone = server.put(Tenant("gone", 0)).number
    server.remove("gone")
    used = UsedRow("base", "acme", "m", 5, Used(1, 2, 0, 3))
    server.add_usage([used])
    for found in path.parent.glob(pattern):
        found.unlink()
    for _ in range(2):
        with pytest.raises(LoradError, match="was deleted") as refusal:
            server.add_usage([used])
        assert refusal.value.code == "state_missing" and not path.exists()
    state.look()
    server.add_usage([used])
    assert (server.tenants(), server.keys()) == ([acme], [key])
    assert server.usage() == [used._replace(used=used.used.plus(used.used))]
    assert server.put(Tenant("newer", 0)).number > gone, "a number is never given again"
    server.close()
    state.close()
